"""Custom backends that hang, lie, die or break the rules: the consumer has an error, in its place, and no hang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import guideloom as gl
from guideloom.errors import BackendError, ClosedError, CorruptionError, ShortReadError
from guideloom.ranges import ByteRanges
from tests.datasets.opened import OneMethod
from tests.loader.samples import ids
from tests.streams import counted, stream_files

FILES = stream_files(counted([4 * 100], "<i4"))  # windows of 16 bytes, ten to a batch of 160


class Adversary(OneMethod):
    """Does something of its own for reads of data from byte 960 on: batch 6."""

    def __init__(self, act: Callable[[bytes], Any]) -> None:
        super().__init__(FILES)
        self.act = act
        self.active = True

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        data = await super().read_range(path, offset, length)
        if self.active and path.endswith(".bin") and offset >= 960:
            data = self.act(data)
            if asyncio.iscoroutine(data):
                data = await data
        return data


def loader_over(backend: gl.ReadBackend, **options: Any) -> gl.Loader[Any]:
    return gl.Loader(gl.open_dataset(backend, window=4, verify=options.pop("verify", False)), 10, **options)


def raising(error: BaseException) -> Callable[[bytes], Any]:
    def act(data: bytes) -> bytes:
        raise error

    return act


@pytest.mark.parametrize("prefetch", [0, 2, 64])
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (raising(OSError(5, "Input/output error")), BackendError),
        (raising(TimeoutError()), BackendError),
        (raising(KeyError("a bug")), KeyError),
        (raising(RuntimeError("a bug")), RuntimeError),
        (lambda data: data[:-1], ShortReadError),
        (lambda data: b"", ShortReadError),
        (lambda data: data + b"0", BackendError),
        (lambda data: None, TypeError),
        (raising(asyncio.CancelledError()), ClosedError),
        (raising(SystemExit(3)), SystemExit),
        (raising(KeyboardInterrupt()), KeyboardInterrupt),
    ],
    ids=["EIO", "timeout", "KeyError", "bug", "short", "empty", "long", "None", "cancelled", "exit", "interrupt"],
)
def test_what_a_backend_does_wrong_is_an_error_at_its_batch(prefetch: int, act: Any, error: Any) -> None:
    """C56, C80, promise 4: six batches, then the error on this thread, within five seconds and again when asked again.
    The loader stands at batch 6, and a new one reads it once the fault is gone."""
    backend = Adversary(act)
    loader = loader_over(backend, prefetch=prefetch)
    batches = iter(loader)
    begin = time.monotonic()
    received = 0
    with contextlib.suppress(error):
        while received < 6:
            assert ids(next(batches))[0] == 10 * received
            received += 1
    # What is no Exception ends the whole slice of batches that are read together.
    assert received == 6 or (prefetch == 64 and error in (ClosedError, SystemExit, KeyboardInterrupt))
    for _ in range(2):
        with pytest.raises(error):
            next(batches)
    assert time.monotonic() - begin < 5
    state = loader.state_dict()
    assert state["step"] == received
    loader.close()
    backend.active = False
    with loader_over(backend) as loader:
        loader.load_state_dict(state)
        assert [ids(batch)[0] for batch in loader] == list(range(10 * received, 100, 10))


def test_other_bytes_are_found_out_by_the_checks() -> None:
    backend = OneMethod({**FILES, "shards/00000-0.bin": FILES["shards/00000-0.bin"][::-1]})
    with loader_over(backend, verify=True) as loader, pytest.raises(CorruptionError, match="twice"):
        next(iter(loader))


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_backend_that_hangs_holds_up_neither_what_came_before_nor_the_close(stubborn: bool) -> None:
    """Nothing hangs but the read itself: earlier batches come, close returns, a consumer that waits is told."""
    waiting = threading.Event()

    async def hang() -> bytes:
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if stubborn:
                await asyncio.sleep(0.5)
            raise
        return b""

    loader = loader_over(Adversary(lambda data: hang()), prefetch=4)
    batches = iter(loader)
    assert [ids(next(batches))[0] for _ in range(6)] == [0, 10, 20, 30, 40, 50]
    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(next, batches)
        assert waiting.wait(5)
        time.sleep(0.05)
        begin = time.monotonic()
        loader.close()
        with pytest.raises(ClosedError):
            consumer.result(5)
        assert time.monotonic() - begin < 2
    assert loader.state_dict()["step"] == 6


def test_tasks_cancelled_by_others_are_an_error_at_the_consumer() -> None:
    """C80: all tasks of the loop are cancelled after batch 5."""
    loader = loader_over(OneMethod(FILES), prefetch=2)
    batches = iter(loader)
    for _ in range(5):
        next(batches)

    async def cancel_all() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    loader._engine._opened[0].run(cancel_all)  # type: ignore[index]  # it is open
    begin = time.monotonic()
    received = 5
    with pytest.raises(ClosedError):  # noqa: PT012 - one or two may have been read before
        while True:
            assert ids(next(batches))[0] == 10 * received
            received += 1
    assert time.monotonic() - begin < 5
    assert loader.state_dict()["step"] == received
    loader.load_state_dict(loader.state_dict())
    assert [ids(batch)[0] for batch in loader] == list(range(10 * received, 100, 10))
    loader.close()


class Lawless(gl.MemoryBackend):
    """Implements `read_ranges` itself, and breaks its rules."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(FILES)
        self.error = error

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("of its own"), OSError(5, "Input/output error"), BackendError("plain")])
def test_an_error_that_is_no_rangeserror_reaches_the_consumer(error: Exception) -> None:
    """A backend that implements the protocol wrongly is still no hang."""
    with loader_over(Lawless(error)) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(type(error), match=str(error.args[-1])):
                next(batches)
        assert loader.state_dict()["step"] == 0


def test_opening_and_closing_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    """An error of `open` comes where the reader is opened; one of `close` hides nothing, and is logged."""

    class Moody(gl.MemoryBackend):
        opens = closes = True

        async def open(self) -> None:
            if not self.opens:
                raise BackendError("no connection")

        async def close(self) -> None:
            if not self.closes:
                raise RuntimeError("no farewell")

    backend = Moody(FILES)
    dataset = gl.open_dataset(backend, window=4)
    backend.opens = False
    for open_it in (dataset.sync_reader().open, lambda: iter(gl.Loader(dataset))):
        with pytest.raises(BackendError, match="no connection"):
            open_it()
    backend.opens, backend.closes = True, False
    with gl.Loader(dataset, 10) as loader:
        assert len(list(loader)) == 10
    assert "no farewell" in caplog.text
