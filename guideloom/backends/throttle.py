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
        self.num_cuts = 0
        self._successes = 0
        self._paused_until = 0.0  # in the loop's time, which is positive; 0 for no pause
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Wait until one more request may begin."""
        if not self._waiting and self.in_flight < self.limit and not self._paused():
            self.in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
        if self._waiting:
            self._wake()

    def succeeded(self) -> None:
        """Say that the server did as it was asked."""
        self._successes += 1
        if self._successes >= SUCCESSES_PER_STEP:
            self._successes = 0
            self.limit = min(self.limit + 1, self.most)

    def overloaded(self, num_cuts: int, pause_seconds: float) -> None:
        """Say that the server is overloaded.

        Parameters
        ----------
        num_cuts : int
            How often the bound had been halved when that request began; of those under way together only one counts.
        pause_seconds : float
            For how long no request may begin.
        """
        self._successes = 0
        if num_cuts == self.num_cuts:
            self.num_cuts += 1
            self.limit = max(self.limit // 2, 1)
        if pause_seconds:
            self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + pause_seconds)

    def _paused(self) -> bool:
        if self._paused_until and asyncio.get_running_loop().time() >= self._paused_until:
            self._paused_until = 0.0
        return self._paused_until > 0

    def _wake(self) -> None:
        if self._paused():
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_at(self._paused_until, self._end_pause)
            return
        while self._waiting and self.in_flight < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)

    def _end_pause(self) -> None:
        self._timer = None
        self._wake()

    def close(self) -> None:
        """Drop the timer of a pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
