"""Files of a local or mounted filesystem, read by `preadv` on a few threads."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from guideloom._speedups.reading import BYTES_CODE, SHORT, Buffers, ReadJob, Sources, group_by_file, guard_copies
from guideloom._typing import Int32Array, PathLike
from guideloom.backends.base import errno_error, raise_failures, short_read, translate
from guideloom.backends.descriptors import descriptors, open_regular
from guideloom.backends.pool import ReadPool
from guideloom.errors import BackendError, ClosedError
from guideloom.ranges import ByteRanges

# A chunk is what a thread takes at a time: its share of a slice, since each taking needs the interpreter once more; but
# of few files, since it holds them open meanwhile.
LEAST_CHUNK_PIECES = 32
MOST_CHUNK_FILES = 16

# Pieces of one file, as (file, low, high): places ``low .. high`` of an order that is sorted by file.
Run: TypeAlias = tuple[int, int, int]

T = TypeVar("T")


class LocalBackend:
    """Reads files under a folder.

    Reads of a whole slice of batches take one hop to the pool, where `preadv` runs without the GIL: first for all
    that the page cache holds, while the kernel fetches the rest. Small reads of cached pages are done at once on the
    calling thread. As long as everything is cached, files of local disks are copied from memory maps, which costs half
    as much; a page that has to come from the disk ends that, until all is cached again.

    Parameters
    ----------
    root : str or path
        The folder.
    num_threads : int, default 2
        Threads of the pool, started with the first read that needs one.
    inline_bytes : int, default 131,072
        Reads of at most so many bytes are tried on the event loop's own thread, if their files are open and their pages
        cached. A hop costs as much as copying about this many bytes.
    memory_map : bool, default True
        Whether cached pages may be copied from memory maps. A file that is cut short under its map, or a disk that
        fails, is an error here as everywhere, and not the end of the process: a handler of SIGBUS, installed with the
        first map, sees to it. Where another one has taken its place, no map is used.
    """

    def __init__(
        self, root: PathLike, *, num_threads: int = 2, inline_bytes: int = 128 * 1024, memory_map: bool = True
    ) -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        self.root = os.path.abspath(os.fspath(root))
        self.num_threads = num_threads
        self.inline_bytes = inline_bytes
        self.memory_map = memory_map
        self._all_cached = False  # all that was read last: so the next will be
        self._opens = 0
        self._pid = os.getpid()
        self._pool: ReadPool | None = None

    def __repr__(self) -> str:
        return f"LocalBackend({self.root!r}, num_threads={self.num_threads})"

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("root", "num_threads", "inline_bytes", "memory_map")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the state is the constructor's arguments

    async def open(self) -> None:
        """Count one more user; files and threads are opened when they are needed."""
        if self._pid != os.getpid():  # a forked child: the users of the parent never close it here
            self._pid, self._opens = os.getpid(), 0
        self._opens += 1

    async def close(self) -> None:
        """Count one user less; the last one closes the files and ends the threads."""
        self._opens -= 1
        if self._opens == 0:
            self._close()

    def __del__(self) -> None:
        if getattr(self, "_opens", 0) > 0:  # dropped, not closed
            self._close()

    def _close(self) -> None:
        close_files = partial(descriptors.close_below, self.root)
        pool, self._pool = self._pool, None
        if pool is not None and pool.pid == os.getpid():
            pool.close(at_end=close_files)  # reads under way may open files again
        close_files()

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a whole small file."""
        return await self._call(partial(self._read_file, path, max_bytes))

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return await self._call(partial(self._size, path))

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with every range."""
        ranges.check_buffers(buffers)
        keep = Buffers(buffers)
        addresses, sizes = np.empty((1, len(buffers)), np.int64), np.empty(len(buffers), np.int64)
        keep.fill(addresses[0], sizes)
        status, detail = np.empty(len(ranges), np.int32), np.zeros((len(ranges), 2), np.int64)
        job = ReadJob(
            file=ranges.file,
            offset=ranges.offset,
            length=ranges.length,
            batch=ranges.buffer,
            element=ranges.position,
            base=addresses,
            status=status,
            detail=detail,
            row_bytes=1,
            fields=[(0, 1, 1, BYTES_CODE, BYTES_CODE)],
            keep=keep,
        )
        await self.run(job, ranges.paths, ranges.file)
        failures: dict[int, Exception] = {}
        for i in np.flatnonzero(status).tolist():
            path, offset, length = ranges.paths[ranges.file[i]], int(ranges.offset[i]), int(ranges.length[i])
            if status[i] == SHORT:
                failures[i] = short_read(path, offset, length, int(detail[i, 0]))
            else:
                failures[i] = errno_error(int(status[i]), path, offset, length)
        raise_failures(failures)

    def read_here(self, path: str, offset: int, target: memoryview) -> None:
        """Fill a buffer with a range of a file, on this thread."""
        length, rest = len(target), target
        try:
            descriptor = descriptors.pin(self._path(path))
            try:
                while len(rest):
                    count = os.preadv(descriptor, [rest], offset + length - len(rest))
                    if count == 0:
                        raise short_read(path, offset, length, length - len(rest))
                    rest = rest[count:]
            finally:
                descriptors.unpin(self._path(path))
        except OSError as error:
            raise translate(error, path, offset, length) from error

    async def run(self, job: ReadJob, paths: Sequence[str], file: Int32Array) -> None:
        """Read every piece of a job that is still pending."""
        order = np.empty(job.num_pieces, np.int32)
        runs = group_by_file(file, order, len(paths))
        if job.num_bytes() <= self.inline_bytes:
            self._run_inline(job, paths, order, runs)
            if job.num_pending() == 0:
                return
        await self._run_on_pool(job, paths, order, runs)

    async def run_again(self, job: ReadJob, paths: Sequence[str], file: Int32Array, pieces: Int32Array) -> None:
        """Read some pieces once more, from the device if the kernel lets go of their pages."""
        order = np.empty(len(pieces), np.int32)
        runs = group_by_file(file[pieces], order, len(paths))
        await self._run_on_pool(job, paths, pieces[order], runs, forget=True)

    def _run_inline(self, job: ReadJob, paths: Sequence[str], order: Int32Array, runs: list[Run]) -> None:
        """Read on this thread what needs no waiting: cached pages of open files."""
        for file, low, high in runs:
            path = self._path(paths[file])
            descriptor = descriptors.pin_if_open(path)
            if descriptor >= 0:
                try:
                    sources = Sources(1)
                    sources.add(high - low, descriptor)
                    job.run(order[low:high], sources, cached_only=True)
                finally:
                    descriptors.unpin(path)

    async def _run_on_pool(
        self, job: ReadJob, paths: Sequence[str], order: Int32Array, runs: list[Run], *, forget: bool = False
    ) -> None:
        def read_files(chunk: list[Run]) -> list[Run]:
            """Read as much of a chunk as files may be open for, and return the rest."""
            start = chunk[0][1]
            sources = Sources(len(chunk))
            map_files = self.memory_map and self._all_cached and not forget and guard_copies()
            pinned: list[str] = []
            rest: list[Run] = []
            try:
                for i, (file, low, high) in enumerate(chunk):
                    if pinned and descriptors.full:
                        chunk, rest = chunk[:i], chunk[i:]
                        break
                    path = self._path(paths[file])
                    try:
                        descriptor = descriptors.pin(path)
                    except OSError as error:
                        job.status[order[low:high]] = error.errno or errno.EBADF
                        sources.add(high - low, -1)
                    else:
                        pinned.append(path)
                        mapping = descriptors.mapping(path, make=map_files) if map_files or forget else None
                        sources.add(high - low, descriptor, mapping)
                pieces = order[start : chunk[-1][2]]
                if forget:
                    job.forget(pieces, sources)
                self._all_cached = job.run(pieces, sources)
            finally:
                for path in pinned:
                    descriptors.unpin(path)
            return rest

        def read_chunk(chunk: list[Run]) -> None:
            while chunk:
                chunk = read_files(chunk)

        share = max(-(-len(order) // self.num_threads), LEAST_CHUNK_PIECES)
        try:
            await self._share_out(read_chunk, _chunks(runs, share))
        except asyncio.CancelledError:
            job.cancelled = True  # threads stop at the next piece; until then the job keeps the memory they write to
            raise

    async def _share_out(self, function: Callable[[T], None], items: list[T]) -> None:
        """Call a function on each item, on the pool's threads; wake the loop once, when all is done."""
        if not items:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        items.reverse()
        workers = [None] * min(self.num_threads, len(items))
        errors: list[BaseException] = []

        def finish() -> None:
            if done.done():
                return
            if errors:
                done.set_exception(errors[0])
            else:
                done.set_result(None)

        def work() -> None:
            while items and not errors:
                try:
                    item = items.pop()
                except IndexError:  # another thread took the last one
                    break
                try:
                    function(item)
                except BaseException as error:
                    errors.append(error)
            workers.pop()
            if not workers:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(finish)

        pool = self._running_pool()
        for _ in range(len(workers)):
            pool.submit(work)
        try:
            await done
        finally:
            items.clear()

    async def _call(self, function: Callable[[], T]) -> T:
        results: list[T] = []
        await self._share_out(lambda call: results.append(call()), [function])
        return results[0]

    def _running_pool(self) -> ReadPool:
        if self._opens < 1:
            raise ClosedError(f"{self!r} is not open")
        if self._pool is None or self._pool.pid != os.getpid():  # a forked child has none of its parent's threads
            self._pool = ReadPool(self.num_threads)
        return self._pool

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _read_file(self, path: str, max_bytes: int) -> bytes:
        try:
            with open(self._path(path), "rb", opener=open_regular) as file:
                data = file.read(max_bytes + 1)
        except OSError as error:
            raise translate(error, path) from error
        if len(data) > max_bytes:
            raise BackendError(f"{path} is larger than {max_bytes} bytes", path=path)
        return data

    def _size(self, path: str) -> int:
        try:
            return os.stat(self._path(path)).st_size
        except OSError as error:
            raise translate(error, path) from error


def _chunks(runs: list[Run], most_pieces: int) -> list[list[Run]]:
    """Cut the runs into chunks of so many pieces, and of not too many files."""
    chunks: list[list[Run]] = []
    chunk: list[Run] = []
    size = 0
    for file, begin, high in runs:
        low = begin
        while low < high:
            stop = min(high, low + most_pieces - size)
            chunk.append((file, low, stop))
            size += stop - low
            low = stop
            if size == most_pieces or len(chunk) == MOST_CHUNK_FILES:
                chunks.append(chunk)
                chunk, size = [], 0
    return [*chunks, chunk] if chunk else chunks
