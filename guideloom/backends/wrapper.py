"""A backend around another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from guideloom.backends.base import HasSizes, ReadBackend
from guideloom.errors import RangesError
from guideloom.ranges import ByteRanges


@runtime_checkable
class HasStats(Protocol):
    """A backend that counts what it does."""

    def stats(self) -> dict[str, Any]:
        """Return figures by name, as plain JSON types."""


class WrapperBackend:
    """Does what the backend inside does; a base for those that do it otherwise in some way.

    Parameters
    ----------
    inner : ReadBackend
        Opened and closed with this one.
    """

    def __init__(self, inner: ReadBackend) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    async def open(self) -> None:
        """Open the backend inside."""
        await self.inner.open()

    async def close(self) -> None:
        """Close the backend inside."""
        await self.inner.close()

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a whole small file."""
        return await self.inner.read_file(path, max_bytes=max_bytes)

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes. Raises ``TypeError`` if the backend inside does not tell."""
        if not isinstance(self.inner, HasSizes):
            raise TypeError(f"{self.inner!r} does not tell the sizes of files")
        return await self.inner.size(path)

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with every range."""
        await self.inner.read_ranges(ranges, buffers)

    def stats(self) -> dict[str, Any]:
        """Return the figures of this backend and of those inside."""
        return self.inner.stats() if isinstance(self.inner, HasStats) else {}


async def attempt(backend: ReadBackend, ranges: ByteRanges, buffers: Sequence[memoryview]) -> dict[int, Exception]:
    """Read ranges, and return the errors of those that failed."""
    try:
        await backend.read_ranges(ranges, buffers)
    except RangesError as error:
        failures: dict[int, Exception] = error.failures
        return failures
    return {}
