"""Byte ranges of files, and where each goes: what every backend is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from guideloom._speedups.planning import group_neighbours
from guideloom._typing import Int32Array, Int64Array


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ByteRanges:
    """Ranges of files as a struct of arrays.

    Range ``i`` is bytes ``offset[i] .. offset[i] + length[i]`` of file ``paths[file[i]]``; it goes to
    ``position[i]`` of buffer ``buffer[i]``.

    Parameters
    ----------
    paths : sequence of str
        Names relative to the backend's root.
    file : int32 array of shape (n,)
        Index into `paths`.
    offset, length : int64 array of shape (n,)
        Bytes.
    buffer : int32 array of shape (n,)
        Index of the buffer to fill.
    position : int64 array of shape (n,)
        Bytes from the start of that buffer.

    Raises
    ------
    ValueError
        If the arrays differ in length, a file index is out of range, or a number is negative.
    """

    paths: Sequence[str]
    file: Int32Array
    offset: Int64Array
    length: Int64Array
    buffer: Int32Array
    position: Int64Array

    def __post_init__(self) -> None:
        n = len(self.file)
        for name, dtype in _DTYPES.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != (n,):
                raise ValueError(f"{name} must be {dtype} of shape ({n},), not {array.dtype} of shape {array.shape}")
            if n and int(array.min()) < 0:
                raise ValueError(f"{name}[{int(array.argmin())}] is negative: {int(array.min())}")
        if n and int(self.file.max()) >= len(self.paths):
            raise ValueError(f"file {int(self.file.max())} is not among the {len(self.paths)} paths")

    @classmethod
    def of(cls, ranges: Iterable[tuple[str, int, int]]) -> ByteRanges:
        """Make ranges by hand, each with a buffer of its own.

        Parameters
        ----------
        ranges : iterable of (path, offset, length)
            Range ``i`` fills buffer ``i`` from its start.

        Examples
        --------
        >>> ByteRanges.of([("a.bin", 0, 100), ("b.bin", 4096, 8)])
        ByteRanges(2 ranges of 2 files, 108 bytes, into 2 buffers)
        """
        rows = list(ranges)
        paths = list(dict.fromkeys(path for path, _, _ in rows))
        index = {path: i for i, path in enumerate(paths)}
        return cls(
            paths=paths,
            file=np.array([index[path] for path, _, _ in rows], np.int32),
            offset=np.array([offset for _, offset, _ in rows], np.int64),
            length=np.array([length for _, _, length in rows], np.int64),
            buffer=np.arange(len(rows), dtype=np.int32),
            position=np.zeros(len(rows), np.int64),
        )

    def __len__(self) -> int:
        return len(self.file)

    def __repr__(self) -> str:
        num_files, num_buffers = len(np.unique(self.file)), len(np.unique(self.buffer))
        what = f"{len(self)} ranges of {num_files} files, {self.num_bytes} bytes"
        return f"ByteRanges({what}, into {num_buffers} buffers)"

    @property
    def num_bytes(self) -> int:
        """Bytes of all ranges together."""
        return int(self.length.sum())

    def take(self, indices: Int64Array) -> ByteRanges:
        """Return some of the ranges, in the order of `indices`."""
        return ByteRanges(
            self.paths,
            self.file[indices],
            self.offset[indices],
            self.length[indices],
            self.buffer[indices],
            self.position[indices],
        )

    def sort(self) -> tuple[ByteRanges, Int64Array]:
        """Return the ranges by file and offset, each in its old place of the buffers.

        Returns
        -------
        ranges : ByteRanges
            Sorted; equal ones stay in order.
        order : int64 array of shape (n,)
            The number that each had before.
        """
        order = np.lexsort((self.offset, self.file)).astype(np.int64)
        return self.take(order), order

    def split(self, max_bytes: int) -> tuple[ByteRanges, Int64Array]:
        """Return the ranges with those longer than `max_bytes` cut into parts, which fill the same places.

        Parameters
        ----------
        max_bytes : int
            Most bytes of a part, at least 1.

        Returns
        -------
        ranges : ByteRanges
            The parts, in order.
        origin : int64 array of shape (num_parts,)
            The range that each is a part of.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        counts = np.maximum(-(-self.length // max_bytes), 1)
        origin = np.repeat(np.arange(len(self), dtype=np.int64), counts)
        begin = (np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts)) * max_bytes
        return ByteRanges(
            self.paths,
            self.file[origin],
            self.offset[origin] + begin,
            np.minimum(self.length[origin] - begin, max_bytes),
            self.buffer[origin],
            self.position[origin] + begin,
        ), origin

    def coalesce(self, *, max_gap_bytes: int, max_coalesced_bytes: int) -> Coalesced:
        """Plan fewer, longer reads that cover all ranges.

        Parameters
        ----------
        max_gap_bytes : int
            Most bytes between two ranges that are read with them rather than as two reads; at least 0.
        max_coalesced_bytes : int
            Most bytes of a read that covers several ranges; a longer range stays one. At least 1.

        Examples
        --------
        >>> ranges = ByteRanges.of([("a", 100, 10), ("b", 0, 5), ("a", 112, 8)])
        >>> ranges.coalesce(max_gap_bytes=4, max_coalesced_bytes=1000).reads
        ByteRanges(2 ranges of 2 files, 25 bytes, into 2 buffers)
        """
        if max_gap_bytes < 0 or max_coalesced_bytes < 1:
            raise ValueError(
                f"max_gap_bytes must be at least 0 and max_coalesced_bytes at least 1, not {max_gap_bytes} and "
                f"{max_coalesced_bytes}"
            )
        ordered, order = self.sort()
        group = np.empty(len(self), np.int64)
        num_reads = group_neighbours(
            ordered.file, ordered.offset, ordered.length, max_gap_bytes, max_coalesced_bytes, group
        )
        first = np.searchsorted(group, np.arange(num_reads))
        start = ordered.offset[first]
        ends = np.maximum.reduceat(ordered.offset + ordered.length, first) if num_reads else start
        reads = ByteRanges(
            self.paths,
            ordered.file[first],
            start,
            ends - start,
            np.arange(num_reads, dtype=np.int32),
            np.zeros(num_reads, np.int64),
        )
        read, shift = np.empty(len(self), np.int64), np.empty(len(self), np.int64)
        read[order] = group
        shift[order] = ordered.offset - start[group]
        return Coalesced(reads, read, shift)

    def check_buffers(self, buffers: Sequence[memoryview]) -> None:
        """Raise ``ValueError`` unless every range fits the buffer it goes to."""
        sizes = np.array([buffer.nbytes for buffer in buffers], np.int64)
        if len(self) and int(self.buffer.max()) >= len(sizes):
            raise ValueError(f"buffer {int(self.buffer.max())} is not among the {len(sizes)} given")
        too_long = self.length > sizes[self.buffer] - self.position
        if too_long.any():
            i = int(too_long.argmax())
            raise ValueError(
                f"range {i} ({self.length[i]} bytes at position {self.position[i]}) does not fit "
                f"buffer {self.buffer[i]} of {sizes[self.buffer[i]]} bytes"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Coalesced:
    """Reads that cover some ranges.

    Parameters
    ----------
    reads : ByteRanges
        Sorted by file and offset, each into a buffer of its own.
    read : int64 array of shape (n,)
        The read that covers each range.
    shift : int64 array of shape (n,)
        Bytes from the start of that read to the start of the range.
    """

    reads: ByteRanges
    read: Int64Array
    shift: Int64Array


_DTYPES = {
    "file": np.dtype(np.int32),
    "offset": np.dtype(np.int64),
    "length": np.dtype(np.int64),
    "buffer": np.dtype(np.int32),
    "position": np.dtype(np.int64),
}
