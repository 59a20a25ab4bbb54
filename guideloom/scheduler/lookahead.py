"""Keep batches in flight ahead of the consumer, and deliver them in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from guideloom._typing import as_int

T = TypeVar("T")

# Batches that are planned, read and handed over together. Each slice costs some 200 microseconds of Python and two
# hops between threads, as much as reading several warm batches.
MOST_SLICE_BATCHES = 32
# Look-ahead when the user names none: four slices, or fewer where they would be large.
MOST_DEFAULT_BATCHES = 128
LEAST_DEFAULT_BATCHES = 4
# Below what glibc keeps when an epoch's end frees it all (62 MiB): each page it gave back would cost a fault again.
DEFAULT_BYTES = 48 * 2**20
MOST_BYTES_IN_FLIGHT = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Budget:
    """How far to look ahead.

    Parameters
    ----------
    prefetch : int
        Batches asked for and not yet taken by the consumer, at least 1.
    """

    prefetch: int

    @classmethod
    def of(cls, prefetch: int | None, *, batch_bytes: int, max_bytes: int) -> Budget:
        """Return the look-ahead that the user asked for, within a budget of bytes.

        Parameters
        ----------
        prefetch : int or None
            Batches; ``None`` for 48 MiB of them, but 4 to 128. ``0`` means 1.
        batch_bytes : int
            Bytes of one batch.
        max_bytes : int
            Bytes of all batches in flight. One batch is always allowed.

        Raises
        ------
        ValueError, TypeError
            If `prefetch` is negative, or `max_bytes` less than 1, or one of them no integer.
        """
        if as_int(max_bytes, "max_bytes_in_flight") < 1:
            raise ValueError(f"max_bytes_in_flight must be at least 1, not {max_bytes}")
        if prefetch is None:
            prefetch = max(LEAST_DEFAULT_BATCHES, min(DEFAULT_BYTES // max(batch_bytes, 1), MOST_DEFAULT_BATCHES))
        if as_int(prefetch, "prefetch") < 0:
            raise ValueError(f"prefetch must be 0 or more batches, not {prefetch}")
        return cls(max(1, min(prefetch, max_bytes // max(batch_bytes, 1))))

    @property
    def slice_batches(self) -> int:
        """Batches to a slice: several slices in flight, so that reading one overlaps with consuming another."""
        return max(1, min(self.prefetch // 4, MOST_SLICE_BATCHES))


class Slice(NamedTuple, Generic[T]):
    """Results of consecutive steps.

    Parameters
    ----------
    first_step : int
        The step of the first result.
    results : list
        One a step; empty after the last step.
    """

    first_step: int
    results: list[T]


class Lookahead(Generic[T]):
    """Reads consecutive steps ahead, a slice of them at a time.

    Parameters
    ----------
    read : async callable
        Takes a first step and a count, and returns one result a step.
    num_steps : int
        Steps ``0 .. num_steps``.
    budget : Budget
        How far ahead.
    """

    def __init__(self, read: Callable[[int, int], Awaitable[list[T]]], num_steps: int, budget: Budget) -> None:
        self._read = read
        self._num_steps = num_steps
        self._budget = budget
        self._next_step = 0
        self._slice_batches = 1  # doubles up to the budget's, so that the first batch does not wait for others
        self._in_flight = 0
        self._taken = 0
        self._slices: deque[tuple[int, int, asyncio.Future[list[T]]]] = deque()

    async def next_slice(self) -> Slice[T]:
        """Return the results of the next steps, none after the last.

        Calling again says that those returned before have been consumed.
        """
        self._in_flight -= self._taken
        self._taken = 0
        self._fill()
        if not self._slices:
            return Slice(self._num_steps, [])
        first_step, count, future = self._slices[0]
        results = await future
        self._slices.popleft()
        self._taken = count
        return Slice(first_step, results)

    async def close(self) -> None:
        """Cancel what is being read, and wait until it has ended."""
        futures = [future for _, _, future in self._slices]
        self._slices.clear()
        self._next_step = self._num_steps
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)

    def _fill(self) -> None:
        # The first batch is read alone: nothing competes with it for threads, or with its consumer for the interpreter.
        most = self._budget.prefetch if self._next_step else 1
        while self._next_step < self._num_steps:
            count = min(self._slice_batches, self._num_steps - self._next_step)
            if self._slices and self._in_flight + count > most:
                return
            future = asyncio.ensure_future(self._read(self._next_step, count))
            self._slices.append((self._next_step, count, future))
            self._next_step += count
            self._in_flight += count
            self._slice_batches = min(2 * self._slice_batches, self._budget.slice_batches)
