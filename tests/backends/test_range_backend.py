"""A custom backend of one method: what the base class makes of it, however the method behaves."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.backends import RangeBackend, ReadBackend
from guideloom.errors import BackendError, GuideLoomError, MissingFileError, RangesError, ReadError, ShortReadError
from guideloom.ranges import ByteRanges
from guideloom.testing import CHECKS, FILES
from guideloom.testing.conformance import Check, check_reads
from tests.backends.checks import range_lists


class Custom(RangeBackend):
    """Slices of `FILES`, as various kinds of buffers, after turns of the loop."""

    def __init__(self, max_concurrency: int = 32) -> None:
        super().__init__(max_concurrency=max_concurrency)
        self.under_way = self.most = self.calls = 0

    async def read_range(self, path: str, offset: int, length: int) -> bytes | bytearray | memoryview:
        self.calls += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(self.calls % 3):
                await asyncio.sleep(0)
            if path not in FILES:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            data = FILES[path][offset : offset + length]
            kind: Callable[[bytes], bytes | bytearray | memoryview] = [bytes, bytearray, memoryview][self.calls % 3]
            return kind(data)
        finally:
            self.under_way -= 1


class Behaves(RangeBackend):
    """Does for each path what it is told."""

    def __init__(self, results: dict[str, Any]) -> None:
        super().__init__()
        self.results = results

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        result = self.results[path]
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[no-any-return]  # on purpose anything


async def failures_of(results: dict[str, Any], length: int = 4) -> tuple[dict[int, Any], list[bytes]]:
    wanted = [(path, 100 * i, length) for i, path in enumerate(results)]
    buffers = [bytearray(length) for _ in wanted]
    try:
        await Behaves(results).read_ranges(ByteRanges.of(wanted), [memoryview(buffer) for buffer in buffers])
    except RangesError as error:
        return error.failures, [bytes(buffer) for buffer in buffers]
    return {}, [bytes(buffer) for buffer in buffers]


@given(range_lists(), st.integers(1, 5))
def test_every_range_lands_in_its_place_and_nothing_beside_it(
    wanted: list[tuple[str, int, int]], max_concurrency: int
) -> None:
    backend = Custom(max_concurrency)
    assert isinstance(backend, ReadBackend)
    asyncio.run(check_reads(backend, wanted))
    assert backend.most <= max_concurrency


@pytest.mark.parametrize("check", CHECKS)
def test_conformance(check: Check) -> None:
    asyncio.run(check(Custom))


def test_requests_in_flight_reach_the_bound_and_no_more() -> None:
    """B1: bounded requests."""
    backend = Custom(max_concurrency=7)
    asyncio.run(check_reads(backend, [("größe.bin", i, 2) for i in range(100)]))
    assert backend.most == 7


def test_whatever_the_method_raises_is_an_error_of_its_range_alone() -> None:
    """Promise 4: the system's errors become ours, with number and place; others are kept, with a note on the place."""

    async def main() -> None:
        failures, buffers = await failures_of(
            {
                "good": b"good",
                "io": OSError(errno.EIO, "input/output error"),
                "gone": FileNotFoundError(errno.ENOENT, "gone"),
                "late": TimeoutError(),
                "bug": RuntimeError("a bug"),
                "more": b"more",
            }
        )
        assert set(failures) == {1, 2, 3, 4}
        assert isinstance(failures[1], ReadError)
        assert (failures[1].errno, failures[1].path, failures[1].offset, failures[1].length) == (
            errno.EIO,
            "io",
            100,
            4,
        )
        assert isinstance(failures[1].__cause__, OSError)
        assert isinstance(failures[2], MissingFileError)
        assert isinstance(failures[3], BackendError)
        assert "late" in str(failures[3])
        assert isinstance(failures[4], RuntimeError)
        assert "4 bytes of bug at offset 400" in "".join(failures[4].__notes__)
        assert (buffers[0], buffers[5]) == (b"good", b"more")

    asyncio.run(main())


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_short_result_is_an_error_and_never_a_short_buffer(length: int) -> None:
    async def main() -> None:
        failures, _ = await failures_of({"short": b"abc"[:length]})
        assert isinstance(failures[0], ShortReadError)
        assert failures[0].found == length

    asyncio.run(main())


def test_a_long_result_is_an_error_that_does_not_talk_of_a_short_file() -> None:
    async def main() -> None:
        failures, _ = await failures_of({"long": b"too long"})
        assert isinstance(failures[0], BackendError)
        assert not isinstance(failures[0], ShortReadError)
        assert "8" in str(failures[0])
        assert "long" in str(failures[0])

    asyncio.run(main())


@pytest.mark.parametrize("result", [None, "text", 4, [1, 2, 3, 4], np.zeros((2, 2), np.uint8).T])
def test_what_are_no_bytes_is_an_error_of_its_range_alone(result: Any) -> None:
    """A custom backend's mistake names the file that it was made at, and costs no other range."""

    async def main() -> None:
        failures, buffers = await failures_of({"good": b"good", "wrong": result, "more": b"more"})
        assert set(failures) == {1}
        assert "wrong" in str(failures[1]) + "".join(getattr(failures[1], "__notes__", []))
        assert (buffers[0], buffers[2]) == (b"good", b"more")

    asyncio.run(main())


@pytest.mark.parametrize(
    "result", [np.arange(4, dtype=np.uint8), np.arange(4, dtype=np.int8), memoryview(b"\0\1\2\3").cast("c")]
)
def test_any_buffer_of_single_bytes_will_do(result: Any) -> None:
    async def main() -> None:
        assert await failures_of({"array": result}) == ({}, [b"\0\1\2\3"])

    asyncio.run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_the_program_is_not_held_up(error: BaseException) -> None:
    with pytest.raises(type(error)):
        asyncio.run(failures_of({"good": b"good", "end": error}))


def test_cancelling_ends_every_read_that_it_started() -> None:
    """T11: after a cancel no task, and nothing in flight, is left."""

    class Hangs(RangeBackend):
        under_way = 0
        full = asyncio.Event()

        async def read_range(self, path: str, offset: int, length: int) -> bytes:
            self.under_way += 1
            if self.under_way == self.max_concurrency:
                self.full.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.under_way -= 1
            return b""

    async def main() -> None:
        backend = Hangs(max_concurrency=5)
        wanted = [("a", i, 1) for i in range(20)]
        buffers = [memoryview(bytearray(1)) for _ in wanted]
        task = asyncio.ensure_future(backend.read_ranges(ByteRanges.of(wanted), buffers))
        await asyncio.wait_for(backend.full.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.under_way == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_bound_of_no_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrency must be at least 1"):
        Custom(max_concurrency=0)


def test_the_method_must_be_there() -> None:
    with pytest.raises(TypeError, match="read_range"):
        RangeBackend()  # type: ignore[abstract]  # that is the point


def test_errors_of_read_file_are_ours() -> None:
    async def main() -> None:
        for error in (OSError(errno.EIO, "input/output error"), FileNotFoundError(errno.ENOENT, "gone")):
            with pytest.raises(GuideLoomError, match="thing"):
                await Behaves({"thing": error}).read_file("thing", max_bytes=10)

    asyncio.run(main())
