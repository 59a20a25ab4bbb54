"""A block device that remembers every write and flush: ``python recorded_disk.py IMAGE LOG MOUNTPOINT``.

It is a loop device over the one file of a FUSE file system, since that needs no module that kernels may lack. What lies
in the log is what a drive would have been told, in that order, so any power cut can be played from it.
"""

from __future__ import annotations

import errno
import importlib
import os
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("<cQI")
WRITE, FLUSH = b"W", b"F"


def events(log: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield what the device was told: `WRITE` with its offset and bytes, or `FLUSH`."""
    with log.open("rb") as file:
        while header := file.read(_HEADER.size):
            kind, offset, length = _HEADER.unpack(header)
            yield kind, offset, file.read(length)


def _serve(image: str, log: str, mountpoint: str) -> None:
    fuse: Any = importlib.import_module("mfusepy")
    lock = threading.Lock()
    data = os.open(image, os.O_RDWR)
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Disk(fuse.Operations):  # type: ignore[misc]  # of a package that has no types
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path != "/disk":
                raise fuse.FuseOSError(errno.ENOENT)
            size = os.fstat(data).st_size
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size, "st_blksize": 4096}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", "disk"]

        def open(self, path: str, flags: int) -> int:
            return 1

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(data, size, offset)

        def write(self, path: str, block: bytes, offset: int, fh: int) -> int:
            with lock:
                os.write(record, _HEADER.pack(WRITE, offset, len(block)) + block)
                return os.pwrite(data, block, offset)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            with lock:
                os.write(record, _HEADER.pack(FLUSH, 0, 0))
            return 0

        def flush(self, path: str, fh: int) -> int:
            return 0

        def fallocate(self, path: str, mode: int, offset: int, length: int, fh: int | None = None) -> int:
            raise fuse.FuseOSError(errno.EOPNOTSUPP)

    fuse.FUSE(Disk(), mountpoint, foreground=True, nothreads=True, direct_io=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
