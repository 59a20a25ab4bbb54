"""Time a loop that counts its own items."""

import resource
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.process import private_bytes


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to measure.

    Parameters
    ----------
    warmup_seconds : float
        Before the first segment.
    seconds : float
        Of a segment.
    segments : int
        Segments, one right after the other.
    most_items : int or None
        Items after which it ends all the same.
    """

    warmup_seconds: float = 0.7
    seconds: float = 1.0
    segments: int = 2
    most_items: int | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """What had been used at some moment; faults of the process, CPU time of all its threads."""

    seconds: float = field(default_factory=time.perf_counter)
    cpu_seconds: float = field(default_factory=time.process_time)
    faults: int = field(default_factory=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


class Clock:
    """Times the segments of a loop: `start` it before the first item, and stop when `add` says so.

    Parameters
    ----------
    timing : Timing
        How long to measure.

    Attributes
    ----------
    private_bytes : int
        Private memory that was added since the clock was made, at the end of the segment where it was most.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._base = private_bytes()
        self._segments: list[tuple[int, _Mark, _Mark]] = []
        self.private_bytes = 0

    @property
    def bounded(self) -> bool:
        """Whether it ends after so many items."""
        return self._timing.most_items is not None

    def start(self) -> None:
        """Begin, with the warm-up if there is one."""
        self._items = 0
        self._all_items = 0
        self._warming_up = self._timing.warmup_seconds > 0
        self._begin = _Mark()
        self._end = self._begin.seconds + (self._timing.warmup_seconds or self._timing.seconds)

    def add(self, items: int) -> bool:
        """Count some items, and return whether that was enough."""
        self._items += items
        self._all_items += items
        full = self._timing.most_items is not None and self._all_items >= self._timing.most_items
        if not full and time.perf_counter() < self._end:
            return False
        now = _Mark()
        if self._warming_up:
            self._warming_up = False
        else:
            self._segments.append((self._items, self._begin, now))
            self.private_bytes = max(self.private_bytes, private_bytes() - self._base)
        self._items = 0
        self._begin = _Mark()
        self._end = self._begin.seconds + self._timing.seconds
        return full or len(self._segments) == self._timing.segments

    def result(self, item_bytes: int) -> dict[str, Any]:
        """Return items a second of each segment, and what that took.

        Parameters
        ----------
        item_bytes : int
            Stored bytes of an item.

        Returns
        -------
        dict
            ``values``, one a segment; and ``costs``, each the median of the segments.
        """
        rates, cpu, faults = [], [], []
        for items, begin, end in self._segments:
            rates.append(items / (end.seconds - begin.seconds))
            cpu.append((end.cpu_seconds - begin.cpu_seconds) / (items * item_bytes / 1e9))
            faults.append((end.faults - begin.faults) / items)
        return {
            "values": rates,
            "costs": {
                "GB/s": statistics.median(rates) * item_bytes / 1e9,
                "CPU s/GB": statistics.median(cpu),
                "faults each": statistics.median(faults),
                "private MB": self.private_bytes / 1e6,
            },
        }
