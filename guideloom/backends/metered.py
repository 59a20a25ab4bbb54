"""What is read, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from guideloom.backends.base import ReadBackend
from guideloom.backends.wrapper import WrapperBackend
from guideloom.errors import RangesError
from guideloom.ranges import ByteRanges

# Upper bounds of the histogram's bins: a tenth of a millisecond, and then twice the one before, up to half a minute.
LATENCY_BINS_SECONDS = tuple(1e-4 * 2**i for i in range(19))


class MeteredBackend(WrapperBackend):
    """Counts calls, ranges, bytes and failures, and how long calls take.

    Parameters
    ----------
    inner : ReadBackend
        What reads.
    """

    def __init__(self, inner: ReadBackend) -> None:
        super().__init__(inner)
        self._calls = self._ranges = self._bytes = self._failed = 0
        self._latencies = [0] * (len(LATENCY_BINS_SECONDS) + 1)

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the state is the constructor's arguments

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with every range."""
        begin = time.perf_counter()
        failed = 0
        try:
            await self.inner.read_ranges(ranges, buffers)
        except RangesError as error:
            failed = len(error.failures)
            raise
        finally:
            seconds = time.perf_counter() - begin
            self._calls += 1
            self._ranges += len(ranges)
            self._bytes += ranges.num_bytes
            self._failed += failed
            self._latencies[sum(seconds > most for most in LATENCY_BINS_SECONDS)] += 1

    def stats(self) -> dict[str, Any]:
        """Return what was asked for here, and the figures of the backends inside.

        Returns
        -------
        dict
            ``calls``, ``ranges``, ``bytes`` and ``failed_ranges`` as counts; ``latency_seconds``, a list of
            [upper bound of seconds, calls] without empty bins, the last bound ``None``; and what is counted inside.
        """
        bins = zip([*LATENCY_BINS_SECONDS, None], self._latencies, strict=True)
        return {
            **super().stats(),
            "calls": self._calls,
            "ranges": self._ranges,
            "bytes": self._bytes,
            "failed_ranges": self._failed,
            "latency_seconds": [[bound, count] for bound, count in bins if count],
        }
