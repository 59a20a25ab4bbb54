"""Reads that failed for a while, tried again."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from guideloom.backends.base import ReadBackend, raise_failures, short_read
from guideloom.backends.wrapper import WrapperBackend, attempt
from guideloom.errors import BackendError, RetriesExhaustedError, ShortReadError
from guideloom.ranges import ByteRanges

T = TypeVar("T")

logger = logging.getLogger("guideloom")

TRANSIENT_ERRNOS = frozenset(
    {
        errno.EAGAIN,
        errno.EINTR,
        errno.EIO,
        errno.ETIMEDOUT,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.EREMOTEIO,
        errno.ESTALE,
    }
)

_random = random.SystemRandom()  # ranks that a program seeds alike, or that are forked, must not wait alike


def is_transient(error: Exception) -> bool:
    """Return whether trying again may help.

    Errors of servers say so themselves; those of the system go by their number, and all others are final.
    """
    if not isinstance(error, BackendError):
        return False
    said = error.details.get("transient")
    if said is not None:
        return bool(said)
    return error.errno in TRANSIENT_ERRNOS or isinstance(error.__cause__ or error, (TimeoutError, ConnectionError))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long reads are tried again.

    Before retry ``n``, counted from 0, it waits for a random time up to ``first_delay_seconds * 2**n``, and at least
    for as long as the server asks.

    Parameters
    ----------
    max_retries : int
        Most retries of a range that reach the server. While there is no connection, time alone counts.
    max_seconds : float
        No retry begins later than so long after the first failure of a call.
    first_delay_seconds, max_delay_seconds : float
        Bounds of the random delay.
    max_retry_after_seconds : float
        A server that asks to wait longer is not asked again.
    budget : int
        Retries that may be made in a row, over all calls. Each range that is read adds a tenth of one, up to this; so
        a server in trouble sees at most a tenth more requests than usual. Those that it turned away as overloaded do
        not count, since fewer are made then anyway.
    """

    max_retries: int = 8
    max_seconds: float = 120.0
    first_delay_seconds: float = 0.1
    max_delay_seconds: float = 15.0
    max_retry_after_seconds: float = 60.0
    budget: int = 50

    def __post_init__(self) -> None:
        if self.max_retries < 0 or self.budget < 0:
            raise ValueError(f"max_retries and budget must be at least 0, not {self.max_retries} and {self.budget}")

    def delay(self, retry: int) -> float:
        """Return for how long to wait before a retry, in seconds."""
        return _random.uniform(0, min(self.max_delay_seconds, self.first_delay_seconds * 2 ** min(retry, 60)))


@dataclass(slots=True)
class _Range:
    """A range that failed: what is in place all the same, and what happened."""

    done: int = 0
    counted: int = 0
    attempts: list[tuple[float, str]] = field(default_factory=list)


class RetryingBackend(WrapperBackend):
    """Tries again what failed for a reason that may pass, from the byte where it broke.

    Parameters
    ----------
    inner : ReadBackend
        What reads.
    policy : RetryPolicy, optional
        How often and how long.
    """

    def __init__(self, inner: ReadBackend, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self.policy = policy or RetryPolicy()
        self._tokens = float(self.policy.budget)
        self._retries = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "policy": self.policy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the state is the constructor's arguments

    def stats(self) -> dict[str, Any]:
        """Return the number of retries, and the figures of the backend inside."""
        return {**super().stats(), "retries": self._retries}

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a whole small file."""
        return await self._repeat(path, lambda: self.inner.read_file(path, max_bytes=max_bytes))

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return await self._repeat(path, lambda: super(RetryingBackend, self).size(path))

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with every range."""
        failed = await attempt(self.inner, ranges, buffers)
        self._earn(len(ranges) - len(failed))
        if not failed:
            return
        begin = asyncio.get_running_loop().time()
        final: dict[int, Exception] = {}
        states: dict[int, _Range] = {}
        number = 0
        while True:
            floor = 0.0
            pending: list[int] = []
            for i, error in failed.items():
                state = states.setdefault(i, _Range())
                reason = self._settle(ranges, i, error, state, begin)
                if reason is not None:
                    final[i] = reason
                else:
                    floor = max(floor, _asked_to_wait(error))
                    pending.append(i)
            if not pending:
                break
            delay = max(self.policy.delay(number), floor)
            if self._elapsed(begin) + delay > self.policy.max_seconds:
                final.update((i, self._exhausted(_where(ranges, i), states[i], "time is up")) for i in pending)
                break
            logger.info("%d reads are tried again in %.2f s; the first: %s", len(pending), delay, failed[pending[0]])
            await asyncio.sleep(delay)
            self._retries += len(pending)
            done = np.array([states[i].done for i in pending], np.int64)
            rest = ranges.take(np.array(pending))
            rest = ByteRanges(
                rest.paths, rest.file, rest.offset + done, rest.length - done, rest.buffer, rest.position + done
            )
            again = await attempt(self.inner, rest, buffers)
            self._earn(len(pending) - len(again))
            failed = {pending[k]: error for k, error in again.items()}
            number += 1
        raise_failures(final)

    def _settle(self, ranges: ByteRanges, i: int, error: Exception, state: _Range, begin: float) -> Exception | None:
        """Return the error that a range ends with; none if it is to be tried again."""
        where = _where(ranges, i)
        if isinstance(error, ShortReadError) and state.done:
            return short_read(*where, state.done + error.details["found"])
        if not is_transient(error):
            return error
        assert isinstance(error, BackendError)
        state.done += error.details.get("received") or 0
        state.attempts.append((self._elapsed(begin), str(error)))
        why = self._why_not(error, state)
        return None if why is None else self._exhausted(where, state, why, error)

    def _why_not(self, error: BackendError, state: _Range) -> str | None:
        """Return why there is no further retry; none if there is. One that reaches the server is counted."""
        asked = _asked_to_wait(error)
        if asked > self.policy.max_retry_after_seconds:
            return f"the server asks to wait {asked:.0f} s"
        if error.details.get("reached", True):
            if state.counted >= self.policy.max_retries:
                return f"{state.counted} retries failed"
            state.counted += 1
            if error.details.get("status") not in (429, 503):
                if self._tokens < 1:
                    return "too many reads fail to retry them all"
                self._tokens -= 1
        return None

    async def _repeat(self, path: str, read: Callable[[], Awaitable[T]]) -> T:
        """Read again and again; attempts count here even without a connection: an address may be wrong."""
        begin = asyncio.get_running_loop().time()
        state = _Range()
        for number in range(self.policy.max_retries + 1):
            try:
                return await read()
            except BackendError as error:
                if not is_transient(error):
                    raise
                state.attempts.append((self._elapsed(begin), str(error)))
                failure = error
            delay = max(self.policy.delay(number), _asked_to_wait(failure))
            why = self._why_not(failure, state)
            if number == self.policy.max_retries:
                why = f"{number} retries failed"
            elif self._elapsed(begin) + delay > self.policy.max_seconds:
                why = why or "time is up"
            if why is not None:
                raise self._exhausted((path, None, None), state, why, failure)
            logger.info("%s is read again in %.2f s: %s", path, delay, failure)
            await asyncio.sleep(delay)
            self._retries += 1
        raise AssertionError("the last attempt returns or raises")

    def _exhausted(
        self,
        where: tuple[str, int | None, int | None],
        state: _Range,
        why: str,
        cause: BaseException | None = None,
    ) -> RetriesExhaustedError:
        path, offset, length = where
        seconds, last = state.attempts[-1]
        error = RetriesExhaustedError(
            f"{why}, after {len(state.attempts)} attempts in {seconds:.1f} s. The last: {last}",
            path=path,
            offset=offset,
            length=length,
            attempts=state.attempts,
            transient=False,
        )
        error.__cause__ = cause
        return error

    def _earn(self, num_reads: int) -> None:
        self._tokens = min(self._tokens + 0.1 * num_reads, self.policy.budget)

    @staticmethod
    def _elapsed(begin: float) -> float:
        return asyncio.get_running_loop().time() - begin


def _where(ranges: ByteRanges, i: int) -> tuple[str, int, int]:
    return ranges.paths[ranges.file[i]], int(ranges.offset[i]), int(ranges.length[i])


def _asked_to_wait(error: Exception) -> float:
    """Return the seconds that a server asked to wait."""
    return (isinstance(error, BackendError) and error.details.get("retry_after")) or 0.0
