"""How many requests may be under way, as the server's answers have it."""

from __future__ import annotations

import asyncio
from collections import deque

# One more request at a time after so many successes.
SUCCESSES_PER_STEP = 50


class Throttle:
    """A bound on requests in flight that is halved when the server is overloaded, and then grows slowly.

    It belongs to one event loop.

    Parameters
    ----------
    most : int
        The bound at the start, which is never passed.
    """

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self.in_flight = 0
        self._successes = 0
        self._cut_at = self._paused_until = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Wait until one more request may begin."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self.in_flight < self.limit and loop.time() >= self._paused_until:
            self.in_flight += 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Say that a request has ended."""
        self.in_flight -= 1
        self._wake()

    def succeeded(self) -> None:
        """Say that the server did as it was asked."""
        self._successes += 1
        if self._successes >= SUCCESSES_PER_STEP:
            self._successes = 0
            self.limit = min(self.limit + 1, self.most)

    def overloaded(self, began: float, pause_seconds: float) -> None:
        """Say that the server is overloaded.

        Parameters
        ----------
        began : float
            When that request began, in the loop's time; of those that were under way together only one counts.
        pause_seconds : float
            For how long no request may begin.
        """
        now = asyncio.get_running_loop().time()
        self._successes = 0
        if began > self._cut_at:
            self._cut_at = now
            self.limit = max(self.limit // 2, 1)
        self._paused_until = max(self._paused_until, now + pause_seconds)

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._paused_until - loop.time()
        while self._waiting and self.in_flight < self.limit and pause <= 0:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
        if self._waiting and pause > 0 and self._timer is None:
            self._timer = loop.call_later(pause, self._end_pause)

    def _end_pause(self) -> None:
        self._timer = None
        self._wake()

    def close(self) -> None:
        """Drop the timer of a pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
