"""Call a function in a fresh Python process: imports, memory and caches of one contender do not touch the next."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_MARK = "result: "


def call_fresh(function: str, arguments: dict[str, Any], *, timeout_seconds: float = 600) -> Any:
    """Call a function in a process of its own and return its result.

    Parameters
    ----------
    function : str
        ``"package.module:name"``.
    arguments : dict
        Its keyword arguments, plain JSON.
    timeout_seconds : float
        How long it may take.

    Returns
    -------
    plain JSON
        What the function returned.

    Raises
    ------
    RuntimeError
        If the process failed; with the end of what it said.
    """
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.process", function, json.dumps(arguments)],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    for line in result.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    raise RuntimeError(f"{function} failed, exit code {result.returncode}:\n{result.stderr[-2000:]}")


def private_bytes() -> int:
    """Return the memory that is this process's alone: not the page cache, not what it maps of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not tell the private memory of a process")


def _main(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    result = getattr(import_module(module), name)(**json.loads(arguments))
    print(_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
