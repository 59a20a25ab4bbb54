"""Programs under strace: their system calls that write below a folder, and faults in any one of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.adversity.programs import ROOT

CALLS = "openat,write,pwrite64,writev,ftruncate,fallocate,fsync,fdatasync,close,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,mkdirat"  # noqa: E501

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")

_LINE = re.compile(r"(?P<thread>\d+) +(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+|\?)")


@dataclass(frozen=True)
class SystemCall:
    """One call: its name, how many of this name its thread had made with it, its arguments and what came of it."""

    name: str
    count: int
    arguments: str
    result: int

    @property
    def writes(self) -> bool:
        """Whether it is not just the opening or closing of something to read."""
        return self.name != "openat" or "O_CREAT" in self.arguments or "O_DIRECTORY" in self.arguments


def run(program: str, root: Path, *, inject: str = "", log: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program, whose argument is `root`, with a fault in it if there is one to `inject`."""
    command = ["strace", "-f", "-qq", "-y", "-e", "signal=none", "-s", "0", "-e", f"trace={CALLS}"]
    command += ["-o", "/dev/null" if log is None else str(log)]
    command += ["-e", f"inject={inject}"] if inject else []
    return subprocess.run(
        [*command, sys.executable, "-B", "-W", "error", "-c", textwrap.dedent(program), str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=ROOT,
    )


def calls_below(program: str, root: Path) -> list[SystemCall]:
    """Run a program to its end, and return the calls that name something below `root`."""
    log = root.with_name(f"{root.name}.strace")
    result = run(program, root, log=log)
    assert (result.returncode, result.stderr) == (0, "")
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for line in log.read_text().splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name = match["call"]
        counts[match["thread"], name] += 1
        if str(root) in match["arguments"]:
            result_number = 0 if match["result"] == "?" else int(match["result"])
            found.append(SystemCall(name, counts[match["thread"], name], match["arguments"], result_number))
    log.unlink()
    return found
