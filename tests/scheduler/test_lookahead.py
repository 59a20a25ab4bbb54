"""Looking ahead: in order, within bounds, and nothing left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from guideloom.scheduler.lookahead import MOST_BYTES_IN_FLIGHT, Budget, Lookahead

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.SelectorEventLoop, uvloop.new_event_loop]


def run(main: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop) -> Any:
    with asyncio.Runner(debug=True, loop_factory=loop_factory) as runner:
        return runner.run(main)


class Reads:
    """Reads of steps that end when, and in the order, that they are told to; counts what is in flight."""

    def __init__(self, delays: list[int] | None = None) -> None:
        self.delays = delays or [0]
        self.asked: list[tuple[int, int]] = []
        self.taken = 0  # steps that the consumer is done with
        self.most_ahead = 0
        self.under_way = 0

    async def __call__(self, first: int, count: int) -> list[int]:
        self.asked.append((first, count))
        self.most_ahead = max(self.most_ahead, first + count - self.taken)
        self.under_way += 1
        try:
            for _ in range(self.delays[len(self.asked) % len(self.delays)]):
                await asyncio.sleep(0)
            return list(range(first, first + count))
        finally:
            self.under_way -= 1


@given(st.integers(0, 200), st.sampled_from([0, 1, 2, 3, 4, 7, 16, 64, 300]), st.lists(st.integers(0, 9), max_size=7))
def test_every_step_once_in_order_and_never_too_far_ahead(num_steps: int, prefetch: int, delays: list[int]) -> None:
    """Promise 1, B1: whatever order the reads end in; batches asked for and not consumed stay within the budget."""

    async def main() -> None:
        reads = Reads(delays)
        lookahead = Lookahead(reads, num_steps, Budget.of(prefetch, batch_bytes=1, max_bytes=2**20))
        found: list[int] = []
        while results := (await lookahead.next_slice()).results:
            assert results[0] == len(found)
            found.extend(results)
            reads.taken = len(found)
        assert found == list(range(num_steps))
        assert (await lookahead.next_slice()) == (num_steps, [])
        assert reads.most_ahead <= max(prefetch, 1)
        assert [first for first, _ in reads.asked] == [
            sum(count for _, count in reads.asked[:i]) for i in range(len(reads.asked))
        ]
        await lookahead.close()

    run(main())


def test_many_batches_share_one_read_and_several_reads_are_under_way() -> None:
    """The design: slices of many batches, of which more than one is in flight."""

    async def main() -> None:
        gate = asyncio.Event()
        under_way: list[int] = []

        async def read(first: int, count: int) -> list[int]:
            if first:
                under_way.append(count)
                await gate.wait()
            return list(range(first, first + count))

        lookahead = Lookahead(read, 1000, Budget(64))
        assert (await lookahead.next_slice()).results == [0]
        next_slice = asyncio.ensure_future(lookahead.next_slice())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(under_way) >= 4
        assert max(under_way) > 8
        assert sum(under_way) <= 64
        gate.set()
        assert (await next_slice).first_step == 1
        await lookahead.close()

    run(main())


def test_the_first_batch_is_not_held_up_by_others() -> None:
    async def main() -> None:
        reads = Reads()
        lookahead = Lookahead(reads, 100, Budget(64))
        await lookahead.next_slice()
        assert reads.asked[0] == (0, 1)
        await lookahead.close()

    run(main())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_close_ends_all_reads_and_waits_for_them(loop_factory: Any) -> None:
    """Promise 6, T11: nothing is left running, and what is left unread is not delivered."""

    async def main() -> None:
        ended = 0

        async def read(first: int, count: int) -> list[int]:
            nonlocal ended
            if not first:
                return [0] * count
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)  # an end that takes its time
                ended += 1
            return []

        lookahead = Lookahead(read, 100, Budget(64))
        await lookahead.next_slice()
        waiting = asyncio.ensure_future(lookahead.next_slice())
        await asyncio.sleep(0.01)
        started = len(asyncio.all_tasks()) - 2
        assert started > 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await lookahead.close()
        assert ended == started
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (await lookahead.next_slice()).results == []
        await lookahead.close()

    run(main(), loop_factory)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_an_error_of_a_read_comes_in_its_turn_and_again(loop_factory: Any) -> None:
    """C56: what was read before it is delivered first; asking again does not hang."""

    async def main() -> None:
        async def read(first: int, count: int) -> list[int]:
            if first == 10:
                raise RuntimeError(f"steps {first} to {first + count}")
            await asyncio.sleep(0.001)
            return list(range(first, first + count))

        lookahead = Lookahead(read, 100, Budget(1))
        found: list[int] = []
        while len(found) < 10:
            found.extend((await lookahead.next_slice()).results)
        assert found == list(range(10))
        with pytest.raises(RuntimeError, match="steps 10 to"):
            await lookahead.next_slice()
        with pytest.raises(RuntimeError, match=f"steps {len(found)} to"):
            await asyncio.wait_for(lookahead.next_slice(), 1)
        await lookahead.close()

    run(main(), loop_factory)


@given(st.integers(0, 10_000), st.integers(0, 2**40), st.integers(1, 2**40))
def test_the_budget_bounds_bytes_and_allows_one_batch(prefetch: int, batch_bytes: int, max_bytes: int) -> None:
    """B1: at least one batch, at most what was asked for, and no more bytes than the budget."""
    budget = Budget.of(prefetch, batch_bytes=batch_bytes, max_bytes=max_bytes)
    assert 1 <= budget.prefetch <= max(prefetch, 1)
    assert budget.prefetch == 1 or budget.prefetch * batch_bytes <= max_bytes
    assert 1 <= budget.slice_batches <= max(budget.prefetch // 2, 1)
    if prefetch and prefetch * max(batch_bytes, 1) <= max_bytes:
        assert budget.prefetch == prefetch


def test_budgets_have_a_default_and_refuse_nonsense() -> None:
    assert Budget.of(None, batch_bytes=1, max_bytes=MOST_BYTES_IN_FLIGHT).prefetch == 128
    assert Budget.of(None, batch_bytes=2**30, max_bytes=MOST_BYTES_IN_FLIGHT).prefetch == 1
    assert Budget.of(None, batch_bytes=2**24, max_bytes=MOST_BYTES_IN_FLIGHT).prefetch == 4
    assert Budget.of(None, batch_bytes=2**20, max_bytes=MOST_BYTES_IN_FLIGHT).prefetch == 48
    with pytest.raises(ValueError, match="prefetch must be 0 or more"):
        Budget.of(-1, batch_bytes=1, max_bytes=1)
    with pytest.raises(ValueError, match="max_bytes_in_flight must be at least 1"):
        Budget.of(1, batch_bytes=1, max_bytes=0)
    with pytest.raises(TypeError, match="prefetch must be an int, not float"):
        Budget.of(8.0, batch_bytes=1, max_bytes=1)  # type: ignore[arg-type]  # the subject
    with pytest.raises(TypeError, match="max_bytes_in_flight must be an int, not str"):
        Budget.of(1, batch_bytes=1, max_bytes="1")  # type: ignore[arg-type]  # the subject
