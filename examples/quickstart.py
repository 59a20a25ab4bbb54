"""Run the whole story: write a dataset, train, be killed, resume, and compare.

    python examples/quickstart.py

The two scripts that it runs, write_dataset.py and train.py, are the ones to read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def run(title: str, script: str, *arguments: object, expect: int = 0) -> None:
    """Run a script, and see that it ends as it should."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    print(f"\n== {title}\n$ python examples/{script} {' '.join(command[2:])}", flush=True)
    start = time.perf_counter()
    code = subprocess.run(command, check=False).returncode
    if code != expect:
        sys.exit(f"{script} ended with {code}, not with {expect}")
    print(f"== {time.perf_counter() - start:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/quickstart"), help="default: %(default)s; written anew")
    parser.add_argument("--runs", type=Path, default=Path("runs/quickstart"), help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=3_000_000, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--kill-at", type=int, default=230, help="step; default: %(default)s")
    parser.add_argument("--save-every", type=int, default=50, help="steps; default: %(default)s")
    args = parser.parse_args()

    start = time.perf_counter()
    checkpoint = args.runs / "model.pt"
    checkpoint.unlink(missing_ok=True)
    shutil.rmtree(args.data / "corpus", ignore_errors=True)

    run("write a dataset", "write_dataset.py", args.data / "corpus", "--tokens", args.tokens)
    steps = ["--steps", args.steps, "--save-every", args.save_every, "--kill-at", args.kill_at]
    training = ["train.py", args.data / "corpus", "--checkpoint", checkpoint, *steps]
    run("train, and be killed", *training, expect=-signal.SIGKILL)
    run("start again: it resumes, and compares its batches with those of an unbroken run", *training)
    print(f"\nall as it should be, in {time.perf_counter() - start:.0f} s; to look at the dataset:")
    print(f"{os.path.relpath(sys.executable)} -m guideloom inspect {args.data / 'corpus'}")


if __name__ == "__main__":
    main()
