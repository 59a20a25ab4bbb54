"""What a backend is: bytes by range, from one root."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from guideloom._speedups.reading import ReadJob
from guideloom._typing import Int32Array
from guideloom.errors import BackendError, MissingFileError, RangesError, ReadError, ShortReadError
from guideloom.ranges import ByteRanges


@runtime_checkable
class ReadBackend(Protocol):
    """Reads byte ranges of the files under one root.

    A backend is opened before its first read and closed after its last; both may be called from several readers, and
    the last close frees what was opened. Names are relative to the root, with ``/`` between parts.
    """

    async def open(self) -> None:
        """Prepare for reading."""

    async def close(self) -> None:
        """Free descriptors, threads and connections once as many closes as opens have come."""

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a whole small file.

        Raises
        ------
        MissingFileError
            If there is no such file.
        BackendError
            If it is larger than `max_bytes`, or cannot be read.
        """

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with every range.

        All ranges are attempted. A call that is cancelled may still be writing: its buffers must then be given up.

        Raises
        ------
        RangesError
            If some ranges failed; it names them, and the others are valid.
        """


@runtime_checkable
class HasSizes(Protocol):
    """A backend that knows the sizes of its files."""

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes."""


@runtime_checkable
class ReadsHere(Protocol):
    """A backend of local files that can read on the thread of the caller, which waits for it."""

    def read_here(self, path: str, offset: int, target: memoryview) -> None:
        """Fill a buffer with a range of a file.

        Raises
        ------
        BackendError
            If the file is missing, ends before, or cannot be read.
        """


@runtime_checkable
class RunsJobs(Protocol):
    """A backend of local files, which reads, checks and lays out pieces in one go, on its own threads."""

    async def run(self, job: ReadJob, paths: Sequence[str], file: Int32Array) -> None:
        """Read every piece that is still pending.

        Parameters
        ----------
        job : ReadJob
            Gets a status a piece; nothing is raised for a piece that fails.
        paths : sequence of str
            Names relative to the root.
        file : int32 array of shape (num_pieces,)
            Index into `paths` for each piece of the job.
        """

    async def run_again(self, job: ReadJob, paths: Sequence[str], file: Int32Array, pieces: Int32Array) -> None:
        """Read some pieces once more, past any cache that can be bypassed."""


class RangeBackend(ABC):
    """Base of a custom backend: give it one method, `read_range`, and it is a whole `ReadBackend`.

    Parameters
    ----------
    max_concurrency : int, default 32
        Most calls of `read_range` at a time.

    Examples
    --------
    >>> class Constant(RangeBackend):
    ...     async def read_range(self, path, offset, length):
    ...         return bytes(length)
    """

    def __init__(self, *, max_concurrency: int = 32) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, not {max_concurrency}")
        self.max_concurrency = max_concurrency

    @abstractmethod
    async def read_range(self, path: str, offset: int, length: int) -> bytes | bytearray | memoryview:
        """Return bytes ``offset .. offset + length`` of a file; fewer only where the file ends.

        Raise ``FileNotFoundError`` for a file that is not there, any other ``OSError`` for one that cannot be read.
        """

    async def open(self) -> None:
        """Prepare for reading; nothing by default."""
        return

    async def close(self) -> None:
        """Free what `open` took; nothing by default."""
        return

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a whole small file, asking for one byte more than it may have."""
        try:
            data = await self.read_range(path, 0, max_bytes + 1)
        except OSError as error:
            raise translate(error, path) from error
        if len(data) > max_bytes:
            raise BackendError(f"{path} is larger than {max_bytes} bytes", path=path)
        return bytes(data)

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, with at most `max_concurrency` reads under way."""

        async def read_into(path: str, offset: int, target: memoryview) -> None:
            _fill(target, await self.read_range(path, offset, target.nbytes), path, offset)

        await read_each(ranges, buffers, read_into, self.max_concurrency)


async def read_each(
    ranges: ByteRanges,
    buffers: Sequence[memoryview],
    read_into: Callable[[str, int, memoryview], Awaitable[None]],
    max_concurrency: int,
) -> None:
    """Fill the buffers range by range, some at a time; raise ``RangesError`` in the end if any failed.

    Parameters
    ----------
    ranges, buffers
        As `ReadBackend.read_ranges` takes them.
    read_into : async callable
        Takes a path, an offset and the memory to fill; called for ranges that are not empty.
    max_concurrency : int
        Most calls at a time.
    """
    ranges.check_buffers(buffers)
    targets = [buffer.cast("B") if buffer.nbytes else buffer for buffer in buffers]
    failures: dict[int, Exception] = {}
    columns = (ranges.file, ranges.offset, ranges.length, ranges.buffer, ranges.position)
    coming = enumerate(zip(*(column.tolist() for column in columns), strict=True))

    async def work() -> None:
        for i, (file, offset, length, buffer, position) in coming:
            path = ranges.paths[file]
            try:
                if length:
                    await read_into(path, offset, targets[buffer][position : position + length])
            except OSError as error:
                failures[i] = translate(error, path, offset, length)
            except Exception as error:
                error.add_note(f"while reading {length} bytes of {path} at offset {offset}")
                failures[i] = error

    tasks = [asyncio.ensure_future(work()) for _ in range(min(max_concurrency, len(ranges)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():  # a second cancel would interrupt what cleans up after the first
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise_failures(failures)


def _fill(target: memoryview, data: bytes | bytearray | memoryview, path: str, offset: int) -> None:
    """Copy what `read_range` returned, if it is what was asked for."""
    source = memoryview(data)
    length, found = target.nbytes, source.nbytes
    if found < length:
        raise short_read(path, offset, length, found)
    if found > length:
        raise BackendError(
            f"the backend returned {found} bytes of {path} at offset {offset}, and was asked for {length}",
            path=path,
            offset=offset,
            length=length,
        )
    target[:] = source.cast("B")


async def attempt(backend: ReadBackend, ranges: ByteRanges, buffers: Sequence[memoryview]) -> dict[int, Exception]:
    """Fill the buffers with every range that can be read; return the errors of the others, by range."""
    try:
        await backend.read_ranges(ranges, buffers)
    except RangesError as error:
        failures: dict[int, Exception] = error.failures
        return failures
    return {}


def raise_failures(failures: dict[int, Exception]) -> None:
    """Raise ``RangesError`` if any range failed, with the first as its cause."""
    if failures:
        first = min(failures)
        raise RangesError(
            f"{len(failures)} ranges could not be read; the first, range {first}: {failures[first]}",
            failures=failures,
        ) from failures[first]


def short_read(path: str, offset: int, length: int, found: int) -> ShortReadError:
    """Make the error for a file that ends before a range does."""
    return ShortReadError(
        f"{path} ends early: {found} of {length} bytes at offset {offset}. Is the file complete?",
        path=path,
        offset=offset,
        length=length,
        found=found,
    )


def translate(error: OSError, path: str, offset: int | None = None, length: int | None = None) -> BackendError:
    """Turn an error of the system into one of ours, naming the file and the range."""
    if isinstance(error, BackendError):
        return error
    where = path if offset is None else f"{path}, {length} bytes at offset {offset}"
    reason = error.strerror or str(error) or type(error).__name__
    details = {"path": path, "offset": offset, "length": length, "errno": error.errno}
    ours: BackendError = ReadError(f"cannot read {where}: {reason}", **details)
    if isinstance(error, FileNotFoundError):
        ours = MissingFileError(f"{path} is missing. Is the dataset complete?", **details)
    ours.__cause__ = error
    return ours


def errno_error(errno: int, path: str, offset: int, length: int) -> BackendError:
    """Make the error for an error number of a read."""
    return translate(OSError(errno, os.strerror(errno)), path, offset, length)
