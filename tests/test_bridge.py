"""The loop in its own thread: every result, every error, every end."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from guideloom.bridge import Bridge, Handover, run_sync
from guideloom.errors import ClosedError
from tests.leaks import no_leaks as no_leaks


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    bridge = Bridge()
    yield bridge
    bridge.close()


def in_child(work: object) -> int:
    """Call a function in a forked child, and return the child's exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()  # type: ignore[operator]  # a function
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def hang() -> None:
    await asyncio.Event().wait()


def test_results_and_errors_come_back_as_they_are(bridge: Bridge) -> None:
    class OwnError(Exception):
        pass

    async def fail(error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    assert bridge.run(answer) == 42
    assert bridge.start(answer).result(bridge.check) == 42
    for error in (OwnError("own"), TimeoutError("own"), OSError(5, "own"), ClosedError("own"), queue.Empty("own")):
        with pytest.raises(type(error), match="own") as caught:
            bridge.run(fail, error)
        assert caught.value is error
    assert bridge.run(answer) == 42


def test_threads_and_running_loops_may_call(bridge: Bridge) -> None:
    """C50, promise 6."""
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: bridge.run(answer), range(100))) == [42] * 100

    async def main() -> int:
        return bridge.run(answer) + run_sync(answer())

    assert asyncio.run(main()) == 84


def test_it_refuses_to_wait_for_itself(bridge: Bridge) -> None:
    async def inside() -> None:
        with pytest.raises(ClosedError, match="would wait for itself"):
            bridge.run(answer)

    bridge.run(inside)


def test_a_closed_bridge_says_so_and_closes_again() -> None:
    bridge = Bridge()
    assert bridge.usable
    bridge.close()
    bridge.close()
    assert not bridge.usable
    for call in (bridge.run, bridge.start):
        with pytest.raises(ClosedError, match="closed"):
            call(answer)
    bridge.call_soon(lambda: None)


def test_close_cancels_what_runs_and_waits_for_its_end() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await hang()
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    bridge = Bridge()
    call = bridge.start(work)
    bridge.run(answer)
    bridge.close()
    assert ended.is_set()
    assert call.done
    with pytest.raises(ClosedError):
        call.result(bridge.check)


def test_close_under_a_waiting_call_is_an_error_there() -> None:
    bridge = Bridge()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: bridge.run(hang))
        bridge.run(answer)
        bridge.close()
        with pytest.raises(ClosedError):
            waiting.result(5)


def test_closing_at_any_moment_hangs_no_caller() -> None:
    """Nothing hangs: calls that meet a close are answered, or told of it."""
    for round_number in range(100):
        bridge = Bridge()
        start = threading.Barrier(4)

        def work(bridge: Bridge = bridge, start: threading.Barrier = start) -> None:
            start.wait(5)
            try:
                while True:
                    assert bridge.run(answer) == 42
            except ClosedError:
                return

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(work) for _ in range(3)]
            start.wait(5)
            time.sleep(0.0003 * (round_number % 5))
            bridge.close()
            for future in futures:
                future.result(10)


def test_a_loop_that_dies_under_its_callers_is_noticed(bridge: Bridge) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: bridge.run(hang))
        bridge.run(answer)
        bridge.call_soon(bridge._loop.stop)
        with pytest.raises(ClosedError):
            waiting.result(5)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_the_end_is_awaited_however_it_comes(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """What opens also closes: by `close`, or when nobody holds the bridge any more (C57)."""
    ends: list[str] = []

    async def end() -> None:
        await asyncio.sleep(0)
        ends.append(threading.current_thread().name)
        raise RuntimeError("and it fails")

    bridge = Bridge(at_end=end)
    bridge.run(answer)
    thread = bridge._thread
    if how == "close":
        bridge.close()
    else:
        gone = weakref.ref(bridge)
        del bridge
        gc.collect()
        assert gone() is None
    assert ends == ["guideloom-loop"]
    assert not thread.is_alive()
    assert "and it fails" in caplog.text


def test_an_interrupted_wait_cancels_what_it_waited_for(bridge: Bridge) -> None:
    """C55: Ctrl-C leaves no coroutine behind in the loop."""
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), 2))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bridge.run(work)
    assert time.monotonic() - begin < 2
    assert cancelled.wait(2)
    timer.join()
    assert bridge.run(answer) == 42


def test_a_forked_child_is_told_and_may_have_its_own(bridge: Bridge) -> None:
    """C47, P2: an error at once in place of a hang; the parent's goes on."""
    assert bridge.run(answer) == 42

    def child() -> None:
        assert not bridge.usable
        with pytest.raises(ClosedError, match="parent process"):
            bridge.run(answer)
        bridge.close()
        assert run_sync(answer()) == 42

    assert in_child(child) == 0
    assert bridge.run(answer) == 42


def numbers(limit: int, ends: list[int], made: list[int]) -> tuple[object, object]:
    async def make() -> str:
        await asyncio.sleep(0)
        if len(made) == limit:
            raise RuntimeError("no more")
        made.append(len(made))
        return f"item {made[-1]}"

    async def close() -> None:
        ends.append(len(made))

    return make, close


def take_all(handover: Handover[str], count: int, held: str | None = None) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        held = handover.take(held)
        found.append(held)
    return found


def test_items_come_in_order_and_one_ahead(bridge: Bridge) -> None:
    ends: list[int] = []
    made: list[int] = []
    make, close = numbers(100, ends, made)
    handover: Handover[str] = Handover(bridge, make, close)  # type: ignore[arg-type]  # functions of `numbers`
    held = None
    for i in range(50):
        held = handover.take(held)
        assert held == f"item {i}"
        time.sleep(0.001)
        assert len(made) <= i + 2
    handover.close()
    bridge.run(answer)
    assert len(ends) == 1


def test_an_item_that_the_caller_never_held_is_given_again(bridge: Bridge) -> None:
    """An interrupt between taking an item and holding it loses nothing."""
    make, close = numbers(100, [], [])
    handover: Handover[str] = Handover(bridge, make, close)  # type: ignore[arg-type]
    first = handover.take(None)
    assert handover.take(None) is first
    assert handover.take(None) is first
    second = handover.take(first)
    assert second == "item 1"
    assert handover.take(first) is second
    assert handover.take(second) == "item 2"
    handover.close()


def test_an_error_comes_after_what_was_made_before_it_and_stays(bridge: Bridge) -> None:
    """C56: the consumer gets the error itself, and asking again does not hang."""
    ends: list[int] = []
    make, close = numbers(3, ends, [])
    handover: Handover[str] = Handover(bridge, make, close)  # type: ignore[arg-type]
    found = take_all(handover, 3)
    assert found == ["item 0", "item 1", "item 2"]
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no more"):
            handover.take(found[-1])
    bridge.run(answer)
    assert ends == [3]


@pytest.mark.parametrize("how", ["handover", "bridge", "tasks", "loop"])
def test_an_end_from_outside_wakes_the_consumer(bridge: Bridge, how: str) -> None:
    """C80: closed by another thread, or all tasks of the loop cancelled: an error within five seconds, not a hang."""

    async def make() -> int:
        await hang()
        return 0

    async def close() -> None:
        pass

    async def cancel_all() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    handover = Handover(bridge, make, close)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: handover.take(None))
        bridge.run(answer)
        time.sleep(0.02)
        if how == "handover":
            handover.close()
        elif how == "bridge":
            bridge.close()
        elif how == "tasks":
            bridge.run(cancel_all)
        else:
            bridge.call_soon(bridge._loop.stop)
        with pytest.raises(ClosedError):
            waiting.result(5)
    with pytest.raises(ClosedError):
        handover.take(None)


def test_a_forked_child_that_takes_is_told(bridge: Bridge) -> None:
    """C48."""
    make, close = numbers(100, [], [])
    handover: Handover[str] = Handover(bridge, make, close)  # type: ignore[arg-type]
    held = handover.take(None)

    def child() -> None:
        with pytest.raises(ClosedError, match="parent process"):
            take_all(handover, 3, held)  # one may have been made before the fork
        handover.close()

    assert in_child(child) == 0
    assert handover.take(held) == "item 1"
    handover.close()
