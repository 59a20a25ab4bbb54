"""Bring files into the page cache, or out of it, and see which are there."""

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_BUFFER_BYTES = 1 << 22


def files_of(path: Path) -> list[Path]:
    """Return a file, or all files below a folder."""
    return [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]


def warm(paths: Iterable[Path]) -> None:
    """Read files once from end to end."""
    buffer = bytearray(_BUFFER_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def drop(paths: Iterable[Path]) -> None:
    """Ask the kernel to forget the pages of files. Pages not written yet would stay, so they are written first."""
    for path in paths:
        with _opened(path) as descriptor:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(paths: Iterable[Path]) -> float:
    """Return the share of the files' pages that the page cache holds, from 0 to 1, by ``mincore``.

    Raises
    ------
    OSError
        If the system does not tell.
    """
    cached = total = 0
    for path in paths:
        with _opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size:
                pages = _resident_pages(descriptor, size)
                cached += sum(page & 1 for page in pages)
                total += len(pages)
    return cached / total if total else 0.0


def _resident_pages(descriptor: int, size: int) -> bytes:
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    # A copy-on-write mapping: ctypes gives addresses of writable memory only. Nothing is written.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(start), ctypes.c_size_t(size), pages)
        del start  # or the mapping could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed")
    return pages.raw


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
