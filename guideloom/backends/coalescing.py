"""Ranges that lie close together, read as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from guideloom._typing import Int64Array
from guideloom.backends.base import ReadBackend, raise_failures
from guideloom.backends.wrapper import WrapperBackend, attempt
from guideloom.errors import ShortReadError
from guideloom.ranges import ByteRanges

# Scratch memory of one call; what is larger is read in several goes.
MOST_SCRATCH_BYTES = 16 * 2**20


class CoalescingBackend(WrapperBackend):
    """Merges neighbouring ranges of a call into fewer, longer reads.

    For storage where a read costs more than some bytes that nobody needs. Ranges that have no neighbour are read
    straight into their place; the others by way of scratch memory.

    Parameters
    ----------
    inner : ReadBackend
        What reads.
    max_gap_bytes : int, default 65,536
        Most bytes between two ranges that are read along with them. About what arrives in the time of a request.
    max_coalesced_bytes : int, default 1,048,576
        Most bytes of a read that covers several ranges.
    """

    def __init__(self, inner: ReadBackend, *, max_gap_bytes: int = 64 * 1024, max_coalesced_bytes: int = 2**20) -> None:
        super().__init__(inner)
        ByteRanges.of([]).coalesce(max_gap_bytes=max_gap_bytes, max_coalesced_bytes=max_coalesced_bytes)  # checks them
        self.max_gap_bytes = max_gap_bytes
        self.max_coalesced_bytes = max_coalesced_bytes

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with every range."""
        ranges.check_buffers(buffers)
        plan = ranges.coalesce(max_gap_bytes=self.max_gap_bytes, max_coalesced_bytes=self.max_coalesced_bytes)
        num_reads = len(plan.reads)
        if num_reads == len(ranges):
            await self.inner.read_ranges(ranges, buffers)
            return
        members = np.bincount(plan.read, minlength=num_reads)
        alone = members[plan.read] == 1
        by_read = np.argsort(plan.read, kind="stable")
        first = np.zeros(num_reads + 1, np.int64)
        np.cumsum(members, out=first[1:])
        scratch_bytes = np.where(members == 1, 0, plan.reads.length)
        failures: dict[int, Exception] = {}
        for begin, end in _portions(scratch_bytes):
            numbers = np.arange(begin, end)
            shared = numbers[members[numbers] > 1]
            indices = by_read[first[begin] : first[end]]
            await self._read_portion(
                ranges, buffers, plan.reads, plan.read, plan.shift, indices[alone[indices]], indices[~alone[indices]],
                shared, failures,
            )  # fmt: skip
        raise_failures(failures)

    async def _read_portion(
        self,
        ranges: ByteRanges,
        buffers: Sequence[memoryview],
        reads: ByteRanges,
        read: Int64Array,
        shift: Int64Array,
        alone: Int64Array,
        together: Int64Array,
        shared: Int64Array,
        failures: dict[int, Exception],
    ) -> None:
        """Read some ranges as they are, and others by the reads that they share; add what failed to `failures`."""
        position = np.zeros(len(reads), np.int64)
        lengths = reads.length[shared]
        position[shared] = np.cumsum(lengths) - lengths
        scratch = np.empty(int(lengths.sum()), np.uint8).data
        direct = ranges.take(alone)
        joint = ByteRanges(
            ranges.paths,
            np.concatenate([direct.file, reads.file[shared]]),
            np.concatenate([direct.offset, reads.offset[shared]]),
            np.concatenate([direct.length, lengths]),
            np.concatenate([direct.buffer, np.full(len(shared), len(buffers), np.int32)]),
            np.concatenate([direct.position, position[shared]]),
        )
        failed = await attempt(self.inner, joint, [*buffers, scratch])
        lost: dict[int, Exception] = {}
        for i, error in failed.items():
            if i < len(alone):
                failures[int(alone[i])] = error
            else:
                lost[int(shared[i - len(alone)])] = error
        targets = [buffer.cast("B") if buffer.nbytes else buffer for buffer in buffers]
        again: list[int] = []
        columns = (
            together,
            read[together],
            position[read[together]] + shift[together],
            ranges.length[together],
            ranges.buffer[together],
            ranges.position[together],
        )
        for i, number, source, length, buffer, at in zip(*(column.tolist() for column in columns), strict=True):
            if number not in lost:
                targets[buffer][at : at + length] = scratch[source : source + length]
            elif isinstance(lost[number], ShortReadError):  # some of them may lie before the end
                again.append(i)
            else:
                failures[i] = lost[number]
        if again:
            for i, error in (await attempt(self.inner, ranges.take(np.array(again)), buffers)).items():
                failures[again[i]] = error


def _portions(scratch_bytes: Int64Array) -> list[tuple[int, int]]:
    """Cut the reads into portions that need no more scratch memory than one call may have."""
    ends = np.cumsum(scratch_bytes)
    portions = []
    begin = 0
    while begin < len(ends):
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + MOST_SCRATCH_BYTES, "right")), begin + 1)
        portions.append((begin, end))
        begin = end
    return portions
