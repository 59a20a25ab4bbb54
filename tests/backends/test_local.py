"""Local files: every range into its place, few threads, few descriptors, and nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.backends import HasSizes, LocalBackend, ReadBackend, RunsJobs, from_url, local
from guideloom.backends.descriptors import DescriptorCache
from guideloom.errors import BackendError, ClosedError, MissingFileError, RangesError
from guideloom.ranges import ByteRanges
from guideloom.testing import CHECKS, FILES, write_files
from guideloom.testing.conformance import Check, check_large_file, check_reads
from tests.backends.checks import range_lists


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"), large=True)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[DescriptorCache]:
    """A cache of descriptors that no other test fills."""
    cache = DescriptorCache()
    monkeypatch.setattr(local, "descriptors", cache)
    yield cache
    cache.close_below("/")


async def read(backend: ReadBackend, *wanted: tuple[str, int, int]) -> list[bytes]:
    buffers = [bytearray(length) for _, _, length in wanted]
    await backend.read_ranges(ByteRanges.of(wanted), [memoryview(buffer) for buffer in buffers])
    return [bytes(buffer) for buffer in buffers]


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("guideloom-read")]


def wait_until(condition: Any, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


@given(range_lists(), st.integers(1, 3), st.sampled_from([0, 500, 131_072]))
def test_every_range_lands_in_its_place_and_nothing_beside_it(
    root: Path, wanted: list[tuple[str, int, int]], num_threads: int, inline_bytes: int
) -> None:
    async def main() -> None:
        backend = LocalBackend(root, num_threads=num_threads, inline_bytes=inline_bytes)
        await backend.open()
        for _ in range(2):  # the second time the files are open, and small reads need no thread
            await check_reads(backend, wanted)
        await backend.close()

    asyncio.run(main())


@pytest.mark.parametrize("inline_bytes", [0, 131_072])
@pytest.mark.parametrize("check", [*CHECKS, check_large_file])
def test_conformance(root: Path, check: Check, inline_bytes: int) -> None:
    asyncio.run(check(lambda: LocalBackend(root, inline_bytes=inline_bytes)))


def test_it_has_the_optional_abilities(root: Path) -> None:
    async def main() -> None:
        backend = LocalBackend(root)
        assert isinstance(backend, ReadBackend)
        assert isinstance(backend, HasSizes)
        assert isinstance(backend, RunsJobs)
        await backend.open()
        assert [await backend.size(path) for path in FILES] == [len(data) for data in FILES.values()]
        with pytest.raises(MissingFileError, match=r"missing\.bin"):
            await backend.size("missing.bin")
        await backend.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["folder", "fifo", "socket", "device", "link out of nowhere", "link to itself"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """M3: a folder, FIFO or device in place of a shard is an error within a second, not a hang."""
    path = tmp_path / "shard.bin"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "device":
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # as /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices; run the test as root")
    else:
        path.symlink_to("nowhere" if kind == "link out of nowhere" else "shard.bin")

    async def main() -> None:
        backend = LocalBackend(tmp_path)
        await backend.open()
        try:
            with pytest.raises(RangesError) as caught:
                await asyncio.wait_for(read(backend, ("shard.bin", 0, 1)), 1)
            assert isinstance(caught.value.failures[0], BackendError)
            assert "shard.bin" in str(caught.value.failures[0])
            with pytest.raises(BackendError, match=r"shard\.bin"):
                await asyncio.wait_for(backend.read_file("shard.bin", max_bytes=10), 1)
        finally:
            await backend.close()

    asyncio.run(main())


def test_threads_start_with_the_first_read_and_end_with_the_last_close(root: Path, cache: DescriptorCache) -> None:
    """Promise 6, B4: threads and descriptors come and go with the readers."""

    async def main() -> None:
        before = len(reading_threads())
        backend = LocalBackend(root, num_threads=3)
        assert len(reading_threads()) == before
        await backend.open()
        await backend.open()
        assert len(reading_threads()) == before
        await read(backend, ("one.bin", 0, 1))
        assert len(reading_threads()) == before + 3
        assert len(cache) == 1
        await backend.close()
        assert await read(backend, ("one.bin", 0, 1)) == [b"\x07"]
        await backend.close()
        wait_until(lambda: len(reading_threads()) == before)
        assert len(cache) == 0

    asyncio.run(main())


def test_a_closed_backend_says_so(root: Path, cache: DescriptorCache) -> None:
    async def main() -> None:
        backend = LocalBackend(root)
        for action in (read(backend, ("one.bin", 0, 1)), backend.read_file("one.bin", max_bytes=1)):
            with pytest.raises(ClosedError, match="not open"):
                await action
        await backend.open()
        await backend.close()
        with pytest.raises(ClosedError):
            await read(backend, ("one.bin", 0, 1))

    asyncio.run(main())


def test_a_backend_that_is_dropped_frees_what_it_took(root: Path, cache: DescriptorCache) -> None:
    """C57: no close, no leak."""
    before = len(reading_threads())

    async def main() -> None:
        for _ in range(5):
            backend = LocalBackend(root)
            await backend.open()
            await read(backend, ("one.bin", 0, 1))

    asyncio.run(main())
    wait_until(lambda: len(reading_threads()) == before)
    assert len(cache) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_last_close_in_a_forked_child_frees_what_was_opened_there(root: Path, cache: DescriptorCache) -> None:
    """P2, B4: the users that the parent has are not counted in the child."""

    async def use(backend: LocalBackend) -> None:
        await backend.open()
        assert await read(backend, ("one.bin", 0, 1)) == [b"\x07"]

    backend = LocalBackend(root, inline_bytes=0)
    asyncio.run(use(backend))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            cache.forget_after_fork()
            asyncio.run(use(backend))
            assert reading_threads()
            asyncio.run(backend.close())
            wait_until(lambda: not reading_threads())
            assert len(cache) == 0
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(cache) == 1
    asyncio.run(backend.close())


def test_a_thousand_reads_at_once_share_the_same_threads(root: Path) -> None:
    """C54: the number of threads never exceeds the documented one."""

    async def main() -> None:
        before = len(reading_threads())
        backend = LocalBackend(root, num_threads=2, inline_bytes=0)
        await backend.open()
        most = 0

        async def one(i: int) -> None:
            nonlocal most
            assert await read(backend, ("größe.bin", i, 9)) == [FILES["größe.bin"][i : i + 9]]
            most = max(most, len(reading_threads()))

        await asyncio.gather(*(one(i) for i in range(1000)))
        assert most == before + 2
        await backend.close()

    asyncio.run(main())


def test_small_warm_reads_need_no_thread(root: Path, cache: DescriptorCache) -> None:
    """A read of cached pages of an open file is done inline."""

    async def main() -> None:
        backend = LocalBackend(root)
        await backend.open()
        await read(backend, ("größe.bin", 0, 100))
        assert backend._pool is not None
        backend._pool.submit = None  # type: ignore[method-assign, assignment]  # nothing may ask for a thread now
        assert await read(backend, ("größe.bin", 50, 10)) == [FILES["größe.bin"][50:60]]
        del backend._pool.submit
        await backend.close()

    asyncio.run(main())


def test_a_cancelled_read_frees_its_caller_and_leaves_the_buffers_alone(
    root: Path, cache: DescriptorCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11: cancelling returns at once, though a thread is stuck; what it has not yet read it does not read."""
    entered, release = threading.Event(), threading.Event()
    pin = cache.pin

    def slow_pin(path: str) -> int:
        entered.set()
        release.wait(30)
        return pin(path)

    monkeypatch.setattr(cache, "pin", slow_pin)

    async def main() -> None:
        backend = LocalBackend(root, num_threads=1)
        await backend.open()
        buffer = bytearray(b"untouched")
        task = asyncio.ensure_future(
            backend.read_ranges(ByteRanges.of([("größe.bin", 0, len(buffer))]), [memoryview(buffer)])
        )
        await asyncio.to_thread(entered.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 1)
        release.set()
        assert await read(backend, ("one.bin", 0, 1)) == [b"\x07"]  # behind it in the queue of the same thread
        assert buffer == b"untouched"
        await backend.close()

    asyncio.run(main())


def test_closing_while_reads_are_under_way_lets_them_end(root: Path) -> None:
    """Promise 6: a close in mid-flight is no crash and no hang; reads end right, or are refused."""

    async def main() -> None:
        for _ in range(50):
            backend = LocalBackend(root, inline_bytes=0)
            await backend.open()
            reads = [asyncio.ensure_future(read(backend, ("größe.bin", i, 1000))) for i in range(8)]
            await asyncio.sleep(0)
            await backend.close()
            results = await asyncio.wait_for(asyncio.gather(*reads, return_exceptions=True), 5)
            for i, result in enumerate(results):
                assert isinstance(result, ClosedError) or result == [FILES["größe.bin"][i : i + 1000]]

    asyncio.run(main())


def test_system_errors_keep_their_number(root: Path, cache: DescriptorCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(cache, "pin", refuse)

    async def main() -> None:
        backend = LocalBackend(root)
        await backend.open()
        with pytest.raises(RangesError) as caught:
            await read(backend, ("one.bin", 0, 1))
        failure = caught.value.failures[0]
        assert (failure.errno, failure.path, failure.offset, failure.length) == (errno.EIO, "one.bin", 0, 1)
        assert isinstance(failure, OSError)
        await backend.close()

    asyncio.run(main())


def test_buffers_that_do_not_fit_are_refused_before_anything_is_written(root: Path) -> None:
    async def main() -> None:
        backend = LocalBackend(root)
        await backend.open()
        with pytest.raises(ValueError, match="does not fit"):
            await backend.read_ranges(ByteRanges.of([("größe.bin", 0, 9)]), [memoryview(bytearray(8))])
        with pytest.raises(ValueError, match="not among"):
            await backend.read_ranges(ByteRanges.of([("größe.bin", 0, 9)]), [])
        with pytest.raises(BufferError):
            await backend.read_ranges(ByteRanges.of([("größe.bin", 0, 9)]), [memoryview(bytes(9))])
        await backend.close()

    asyncio.run(main())


def test_it_pickles_to_its_arguments(root: Path) -> None:
    """P5: configuration only, also after use."""

    async def main() -> None:
        backend = LocalBackend(root, num_threads=3, inline_bytes=77)
        await backend.open()
        await read(backend, ("one.bin", 0, 1))
        copy = pickle.loads(pickle.dumps(backend))
        assert (copy.root, copy.num_threads, copy.inline_bytes) == (backend.root, 3, 77)
        with pytest.raises(ClosedError):
            await copy.read_file("one.bin", max_bytes=1)
        await backend.close()

    asyncio.run(main())


def test_arguments_are_checked(root: Path) -> None:
    with pytest.raises(ValueError, match="num_threads must be at least 1"):
        LocalBackend(root, num_threads=0)


def test_a_path_or_a_file_url_gives_a_local_backend(root: Path) -> None:
    for location in (root, str(root), root.as_uri(), f"file://localhost{root}"):
        backend = from_url(location)
        assert isinstance(backend, LocalBackend)
        assert backend.root == str(root)
    spaced = from_url("file:///data/a%20b%23c")
    assert isinstance(spaced, LocalBackend)
    assert spaced.root == "/data/a b#c"
    for url in ("ftp://host/data", "file://elsewhere/data", "s3://bucket"):
        with pytest.raises(ValueError, match="cannot read"):
            from_url(url)
