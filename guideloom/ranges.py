"""Byte ranges of files, and where each goes: what every backend is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

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


_DTYPES = {
    "file": np.dtype(np.int32),
    "offset": np.dtype(np.int64),
    "length": np.dtype(np.int64),
    "buffer": np.dtype(np.int32),
    "position": np.dtype(np.int64),
}
