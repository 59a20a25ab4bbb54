"""Local files by seek and read on threads, where there is no `preadv`."""

from __future__ import annotations

import asyncio
import os

import aiofiles.os

from guideloom._typing import PathLike
from guideloom.backends.base import RangeBackend, translate


class PortableBackend(RangeBackend):
    """Reads files under a folder with seek and read, each on a thread of the loop's own pool.

    Every read costs a thread hop, some hundred microseconds; `LocalBackend` needs one for a slice of batches.

    Parameters
    ----------
    root : str or path
        The folder.
    max_concurrency : int, default 32
        Most files open at a time.
    """

    def __init__(self, root: PathLike, *, max_concurrency: int = 32) -> None:
        super().__init__(max_concurrency=max_concurrency)
        self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"PortableBackend({self.root!r})"

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of a file."""
        return await asyncio.to_thread(_read, os.path.join(self.root, path), offset, length)

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        try:
            return (await aiofiles.os.stat(os.path.join(self.root, path))).st_size
        except OSError as error:
            raise translate(error, path) from error


def _read(path: str, offset: int, length: int) -> bytes:
    """Read on one thread from open to close, so that a cancel at any moment leaves no file open."""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)
