"""Local files through aiofiles: for platforms without `preadv`."""

from __future__ import annotations

import asyncio
import contextlib
import os

import aiofiles
import aiofiles.os
from aiofiles.threadpool.binary import AsyncBufferedReader

from guideloom._typing import PathLike
from guideloom.backends.base import RangeBackend, translate


class PortableBackend(RangeBackend):
    """Reads files under a folder with seek and read, each on a thread of the loop's own pool.

    Every read costs a thread hop or two, some hundred microseconds; `LocalBackend` needs one for a slice of batches.

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
        opening = asyncio.ensure_future(_open(os.path.join(self.root, path)))
        try:
            file = await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread opens it all the same, and somebody has to close it
            with contextlib.suppress(OSError):
                await (await opening).close()
            raise
        try:
            await file.seek(offset)
            return await file.read(length)
        finally:
            await file.close()

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        try:
            return (await aiofiles.os.stat(os.path.join(self.root, path))).st_size
        except OSError as error:
            raise translate(error, path) from error


async def _open(path: str) -> AsyncBufferedReader:
    return await aiofiles.open(path, "rb")
