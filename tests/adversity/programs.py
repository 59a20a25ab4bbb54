"""Run a program of a few lines in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    status: int
    output: str
    errors: str
    seconds: float


def run_program(
    code: str,
    *arguments: object,
    prefix: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    preexec: Callable[[], object] | None = None,
    seconds: float = 60,
) -> Outcome:
    """Run Python code with warnings as errors, and wait for its end."""
    begin = time.monotonic()
    result = subprocess.run(
        [*prefix, sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        preexec_fn=preexec,
    )
    return Outcome(result.returncode, result.stdout, result.stderr, time.monotonic() - begin)


@contextlib.contextmanager
def running_program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start Python code with warnings as errors; it is killed at the end, if it still runs."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            yield program
        finally:
            program.kill()


def succeeds(code: str, *arguments: object, **options: object) -> str:
    """Run code that must end well and say nothing on stderr; return what it printed."""
    outcome = run_program(code, *arguments, **options)  # type: ignore[arg-type]  # as run_program takes them
    assert (outcome.status, outcome.errors) == (0, "")
    return outcome.output
