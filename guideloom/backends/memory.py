"""Files held in memory: for tests, and for data that was fetched some other way."""

from __future__ import annotations

from collections.abc import Mapping

from guideloom.backends.base import RangeBackend
from guideloom.errors import MissingFileError


class MemoryBackend(RangeBackend):
    """Reads from a mapping of names to bytes.

    Parameters
    ----------
    files : mapping of str to bytes-like
        Contents by name relative to the root; not copied.
    """

    def __init__(self, files: Mapping[str, bytes | bytearray | memoryview]) -> None:
        super().__init__()
        self.files = files

    def __repr__(self) -> str:
        return f"MemoryBackend({len(self.files)} files)"

    async def read_range(self, path: str, offset: int, length: int) -> memoryview:
        """Return bytes of a file."""
        return self._file(path)[offset : offset + length]

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return len(self._file(path))

    def _file(self, path: str) -> memoryview:
        try:
            file = memoryview(self.files[path])
            return file.cast("B") if file.nbytes else memoryview(b"")
        except KeyError:
            raise MissingFileError(f"{path} is missing from memory", path=path) from None
