"""What every backend must do, whatever it reads from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from guideloom.backends.base import HasSizes, ReadBackend
from guideloom.errors import BackendError, MissingFileError, RangesError, ShortReadError
from guideloom.ranges import ByteRanges
from guideloom.testing.files import FILES, LARGE_BYTES, LARGE_FILE, LARGE_MARKS

Check = Callable[[Callable[[], ReadBackend]], Coroutine[Any, Any, None]]

GUARD = 0xEE  # what lies around the places to fill

# Bounds that no backend needs to pass: tasks and descriptors of one call, and memory beyond the buffers.
MOST_TASKS = 300
MOST_DESCRIPTORS = 400
MOST_EXTRA_BYTES = 48 * 2**20
# How long a cancelled call may take to let go.
CANCEL_SECONDS = 10.0


def check_backend(make: Callable[[], ReadBackend], *, large: bool = False) -> None:
    """Put a backend through the whole suite; for single checks, call those of `CHECKS`.

    Parameters
    ----------
    make : callable
        Returns a fresh backend over `FILES`, as `write_files` lays them out in a folder.
    large : bool, default False
        Whether it also holds the file beyond 4 GiB.

    Raises
    ------
    AssertionError
        If the backend does not do what it must; says what.

    Examples
    --------
    >>> from guideloom import MemoryBackend
    >>> check_backend(lambda: MemoryBackend(FILES))
    """
    for check in CHECKS:
        asyncio.run(_named(check, make))
    if large:
        asyncio.run(_named(check_large_file, make))


async def _named(check: Check, make: Callable[[], ReadBackend]) -> None:
    try:
        await check(make)
    except Exception as error:
        error.add_note(f"in {check.__name__}")
        raise


async def check_ranges_in_place(make: Callable[[], ReadBackend]) -> None:
    """Check that every range comes whole and into its place, with nothing beside it: in any order, repeated, empty."""
    random = np.random.default_rng(7)
    names = [name for name in FILES if not name.startswith("many/")]
    async with _open(make()) as backend:
        await check_reads(backend, [])
        await check_reads(backend, [("größe.bin", 0, 70_001), ("größe.bin", 70_001, 0), ("empty.bin", 0, 0)])
        await check_reads(backend, [("big.bin", 1000 * i, 1000) for i in reversed(range(50))] * 2)
        for _ in range(5):
            wanted = []
            for name in random.choice(names, 40).tolist():
                offset = int(random.integers(len(FILES[name]) + 1))
                wanted.append((name, offset, int(random.integers(min(len(FILES[name]) - offset, 20_000) + 1))))
            await check_reads(backend, wanted)


async def check_thousands_of_ranges(make: Callable[[], ReadBackend]) -> None:
    """Check one call of thousands of ranges over hundreds of files, with tasks and descriptors bounded."""
    random = np.random.default_rng(8)
    names = [name for name in FILES if name.startswith("many/")]
    wanted = [(name, int(offset), 50) for name in names for offset in random.integers(450, size=10)]
    random.shuffle(wanted)
    most = {"tasks": 0, "descriptors": 0}
    before = _descriptors()

    async def watch() -> None:
        while True:
            most["tasks"] = max(most["tasks"], len(asyncio.all_tasks()))
            most["descriptors"] = max(most["descriptors"], _descriptors() - before)
            await asyncio.sleep(0.001)

    async with _open(make()) as backend:
        watcher = asyncio.ensure_future(watch())
        try:
            await check_reads(backend, wanted)
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
    _expect(most["tasks"] <= MOST_TASKS, f"one call ran {most['tasks']} tasks at a time; bound its concurrency")
    _expect(most["descriptors"] <= MOST_DESCRIPTORS, f"one call held {most['descriptors']} descriptors open")


async def check_failures(make: Callable[[], ReadBackend]) -> None:
    """Check that ranges that cannot be read are named, each with its error, and all others are valid."""
    wanted = [
        ("one.bin", 0, 1),
        ("missing.bin", 0, 4),
        ("größe.bin", 69_999, 10),
        ("größe.bin", 1, 70_000),
        ("one.bin", 500, 3),
        ("missing/there.bin", 8, 0),
        ("empty.bin", 0, 0),
        ("empty.bin", 0, 1),
    ]
    buffers = [bytearray(length) for _, _, length in wanted]
    failures: Mapping[int, Exception] = {}
    async with _open(make()) as backend:
        try:
            await backend.read_ranges(ByteRanges.of(wanted), [memoryview(buffer) for buffer in buffers])
        except RangesError as error:
            failures = error.failures
    # Whether an empty range of no file is an error is up to the backend.
    _expect(set(failures) - {5} == {1, 2, 4, 7}, f"ranges 1, 2, 4 and 7 of {wanted} fail, not {sorted(failures)}")
    _expect(isinstance(failures[1], MissingFileError), f"a missing file is a MissingFileError, not {failures[1]!r}")
    _expect("missing.bin" in str(failures[1]), f"the error of a missing file names it: {failures[1]}")
    for i, found in ((2, 2), (4, 0), (7, 0)):
        path, offset, length = wanted[i]
        short = failures[i]
        _expect(isinstance(short, ShortReadError), f"a range past the end is a ShortReadError, not {short!r}")
        details = [getattr(short, name, None) for name in ("path", "offset", "length", "found")]
        _expect(details == [path, offset, length, found], f"the error says {details}, not {(*wanted[i], found)}")
    for i in (0, 3):
        path, offset, length = wanted[i]
        _expect(bytes(buffers[i]) == FILES[path][offset : offset + length], f"range {i} is valid though others failed")


async def check_whole_files(make: Callable[[], ReadBackend]) -> None:
    """Check that `read_file` returns all of a file, and refuses one that is longer than it may be."""
    async with _open(make()) as backend:
        for path, data in list(FILES.items())[:20]:
            found = await backend.read_file(path, max_bytes=len(data))
            _expect(isinstance(found, bytes), f"read_file returns bytes, not {type(found).__name__}")
            _expect(found == data, f"read_file({path!r}) returns the file's bytes")
        for path, kind in (("missing.bin", MissingFileError), ("größe.bin", BackendError)):
            try:
                await backend.read_file(path, max_bytes=70_000)
            except kind as error:
                _expect(path in str(error), f"the error names the file: {error}")
                _expect(getattr(error, "path", None) == path, f"the error's path is {path!r}")
            else:
                raise AssertionError(f"read_file({path!r}, max_bytes=70_000) raises {kind.__name__}")


async def check_sizes(make: Callable[[], ReadBackend]) -> None:
    """Check that a backend that has `size` tells those of its files, and raises `MissingFileError` for none."""
    async with _open(make()) as backend:
        if not isinstance(backend, HasSizes):
            return
        for path, data in list(FILES.items())[:20]:
            found = await backend.size(path)
            _expect(found == len(data), f"size({path!r}) is {len(data)}, not {found}")
        try:
            await backend.size("missing.bin")
        except MissingFileError as error:
            _expect("missing.bin" in str(error), f"the error names the file: {error}")
        else:
            raise AssertionError("size of a missing file raises MissingFileError")


async def check_bad_buffers(make: Callable[[], ReadBackend]) -> None:
    """Check that a range that does not fit its buffer is a ``ValueError``, and nothing is written."""
    async with _open(make()) as backend:
        buffer = bytearray([GUARD]) * 8
        try:
            await backend.read_ranges(ByteRanges.of([("größe.bin", 0, 9)]), [memoryview(buffer)])
        except ValueError:
            _expect(set(buffer) == {GUARD}, "nothing is written when a range does not fit")
        else:
            raise AssertionError("a range that does not fit its buffer raises ValueError")


async def check_concurrent_calls(make: Callable[[], ReadBackend]) -> None:
    """Check that many calls at a time do not disturb each other."""
    async with _open(make()) as backend:
        await asyncio.gather(
            *(
                check_reads(backend, [("big.bin", 997 * (i + 100 * k), 997) for k in range(20)] + [("one.bin", 0, 1)])
                for i in range(16)
            )
        )


async def check_memory(make: Callable[[], ReadBackend]) -> None:
    """Check that reading 384 ranges of 256 KiB needs half of that beyond the buffers, at most."""
    size = 2**18
    wanted = [("big.bin", 7000 * i, size) for i in range(384)]
    buffers = [memoryview(bytearray(size)) for _ in wanted]
    async with _open(make()) as backend:
        await check_reads(backend, [("one.bin", 0, 1)])  # what is loaded with the first read is not what it needs
        started = not tracemalloc.is_tracing()
        if started:
            tracemalloc.start()
        try:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            await backend.read_ranges(ByteRanges.of(wanted), buffers)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            if started:
                tracemalloc.stop()
    extra = peak - before
    _expect(extra <= MOST_EXTRA_BYTES, f"reading 96 MiB took {extra / 2**20:.0f} MiB beyond the buffers")
    data = memoryview(FILES["big.bin"])
    for (_, offset, _), buffer in zip(wanted, buffers, strict=True):
        _expect(buffer == data[offset : offset + size], f"{size} bytes at offset {offset} are right")


async def check_cancelling(make: Callable[[], ReadBackend]) -> None:
    """Check that a call that is cancelled at any moment leaves no task, and that later calls are right."""
    wanted = [(name, 0, 300) for name in FILES if name.startswith("many/")]
    async with _open(make()) as backend:
        await check_reads(backend, wanted[:1])
        before = asyncio.all_tasks()
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):
            buffers = [memoryview(bytearray(300)) for _ in wanted]
            task = asyncio.ensure_future(backend.read_ranges(ByteRanges.of(wanted), buffers))
            for _ in range(turns):
                await asyncio.sleep(0)
            done = task.done()
            task.cancel()
            _, pending = await asyncio.wait([task], timeout=CANCEL_SECONDS)
            _expect(not pending, f"a call that is cancelled ends within {CANCEL_SECONDS:.0f} s")
            _expect(done or task.cancelled() or task.exception() is None, "CancelledError is not swallowed")
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - before
            _expect(not left, f"a call cancelled after {turns} turns of the loop left {len(left)} tasks: {left}")
        await check_reads(backend, wanted)


async def check_reopening(make: Callable[[], ReadBackend]) -> None:
    """Check that opens and closes are counted, and that a backend opens again after its last close, in any loop."""
    backend = make()
    await backend.open()
    async with _open(backend):
        await check_reads(backend, [("one.bin", 0, 1)])
    await check_reads(backend, [("größe.bin", 5, 60_000)])  # one user is left
    await backend.close()
    async with _open(backend):
        await check_reads(backend, [("größe.bin", 5, 60_000)])

    await asyncio.to_thread(lambda: asyncio.run(_read_once(backend)))


async def check_pickling(make: Callable[[], ReadBackend]) -> None:
    """Check that a pickle is no larger after use than before, and that its copy reads the same.

    One that would have to carry secrets may refuse, with a ``TypeError``; a class that cannot be imported is let off.
    """
    backend = make()
    try:
        before = pickle.dumps(backend)
    except (TypeError, AttributeError, pickle.PicklingError):
        return
    async with _open(backend):
        await check_reads(backend, [("größe.bin", 5, 60_000), ("one.bin", 0, 1)])
        after = pickle.dumps(backend)
    _expect(len(after) <= len(before) + 1024, f"a pickle grew from {len(before)} to {len(after)} bytes by reading")
    async with _open(pickle.loads(after)) as copy:
        await check_reads(copy, [("größe.bin", 5, 60_000)])


async def check_large_file(make: Callable[[], ReadBackend]) -> None:
    """Check that offsets beyond 2**31 and 2**32 are right."""
    wanted = [(LARGE_FILE, offset, len(data)) for offset, data in LARGE_MARKS.items()]
    buffers = [bytearray(length) for _, _, length in wanted]
    async with _open(make()) as backend:
        await backend.read_ranges(ByteRanges.of(wanted), [memoryview(buffer) for buffer in buffers])
        _expect([bytes(buffer) for buffer in buffers] == list(LARGE_MARKS.values()), "bytes beyond 4 GiB are in place")
        if isinstance(backend, HasSizes):
            _expect(await backend.size(LARGE_FILE) == LARGE_BYTES, "the size of a file beyond 4 GiB is right")
        try:
            await backend.read_ranges(ByteRanges.of([(LARGE_FILE, LARGE_BYTES - 1, 2)]), [memoryview(bytearray(2))])
        except RangesError as error:
            _expect(isinstance(error.failures[0], ShortReadError), "past the end of a large file is an error")
        else:
            raise AssertionError("past the end of a large file is an error")


CHECKS: Sequence[Check] = (
    check_ranges_in_place,
    check_thousands_of_ranges,
    check_failures,
    check_whole_files,
    check_sizes,
    check_bad_buffers,
    check_concurrent_calls,
    check_memory,
    check_cancelling,
    check_reopening,
    check_pickling,
)
"""Every check but that of the large file; each is async, and takes what makes a fresh backend."""


async def check_reads(
    backend: ReadBackend, wanted: Sequence[tuple[str, int, int]], files: Mapping[str, bytes] = FILES
) -> None:
    """Read ranges into two buffers, in turn and apart from each other, and compare every byte of both.

    Parameters
    ----------
    backend : ReadBackend
        Open.
    wanted : sequence of (path, offset, length)
        Ranges of the files, none past the end of its file.
    files : mapping of str to bytes
        What the backend holds.
    """
    ranges = ByteRanges.of(wanted)
    buffer = np.arange(len(wanted), dtype=np.int32) % 2
    position, ends = np.zeros(len(wanted), np.int64), [3, 3]
    for i, (_, _, length) in enumerate(wanted):
        position[i] = ends[i % 2]
        ends[i % 2] += length + 3
    buffers = [bytearray([GUARD]) * end for end in ends]
    expected = [bytearray(buffer) for buffer in buffers]
    for i, (path, offset, length) in enumerate(wanted):
        expected[i % 2][position[i] : position[i] + length] = files[path][offset : offset + length]
    ranges = ByteRanges(ranges.paths, ranges.file, ranges.offset, ranges.length, buffer, position)
    await backend.read_ranges(ranges, [memoryview(buffer) for buffer in buffers])
    for i, (path, offset, length) in enumerate(wanted):
        place = slice(int(position[i]), int(position[i]) + length)
        _expect(
            buffers[i % 2][place] == expected[i % 2][place], f"{length} bytes of {path} at offset {offset} are right"
        )
    _expect(buffers == expected, "nothing is written beside the places of the ranges")


@contextlib.asynccontextmanager
async def _open(backend: ReadBackend) -> AsyncIterator[ReadBackend]:
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def _read_once(backend: ReadBackend) -> None:
    async with _open(backend):
        await check_reads(backend, [("größe.bin", 5, 60_000), ("one.bin", 0, 1)])


def _descriptors() -> int:
    """Return how many descriptors this process has, where the system tells."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def _expect(fulfilled: bool, promise: str) -> None:
    """Raise ``AssertionError`` unless a promise is kept; not an assert, which ``python -O`` leaves out."""
    if not fulfilled:
        raise AssertionError(f"not so: {promise}")
