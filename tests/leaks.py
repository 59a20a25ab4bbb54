"""What the library must not leave behind: threads and open files."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Pool threads are told to end, and not waited for.
PATIENCE_SECONDS = 5.0


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread of the library, or a file that it opened; import it into a folder's conftest."""
    before = _threads() | _open_files() | _mapped_files()
    yield
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := (_threads() | _open_files() | _mapped_files()) - before:
        gc.collect()  # what a traceback held
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(sorted(left))}")
        time.sleep(0.01)


def _threads() -> set[str]:
    return {f"{thread.name} {thread.ident}" for thread in threading.enumerate() if thread.name.startswith("guideloom-")}


def _open_files() -> set[str]:
    """Return descriptors of regular files, which loops, pipes and sockets have none of."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir() if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(entry)
        except OSError:  # that of the listing itself
            continue
        if target.startswith("/") and os.path.isfile(target.removesuffix(" (deleted)")):
            found.add(f"descriptor {entry.name} of {target}")
    return found


def _mapped_files() -> set[str]:
    maps = Path("/proc/self/maps").read_text().splitlines() if os.path.isfile("/proc/self/maps") else []
    return {f"map of {line.split(maxsplit=5)[5]}" for line in maps if ".bin" in line}
