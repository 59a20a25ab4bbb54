"""Rows of any length each, as one array of values and one of offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np

from guideloom._speedups.documents import pad_rows
from guideloom._typing import AnyArray, Int64Array


class Jagged(Sequence[AnyArray]):
    """Arrays of any length each, back to back in one: a field of a batch of numeric documents.

    A sequence of its rows, which are views: ``jagged[2]``, ``list(jagged)``, ``len(jagged)``.

    Parameters
    ----------
    values : array of shape (total, ...)
        All rows, one behind the other.
    offsets : int64 array of shape (n + 1,)
        Row ``i`` is ``values[offsets[i] : offsets[i + 1]]``; from 0 to ``total``.

    Raises
    ------
    ValueError
        If the offsets do not run from 0 to the length of the values, or decrease.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: AnyArray, offsets: Int64Array) -> None:
        self.values = np.asarray(values)
        self.offsets = np.ascontiguousarray(offsets, np.int64)
        if self.values.ndim < 1 or self.offsets.ndim != 1 or not len(self.offsets):
            raise ValueError("a jagged array has values of at least one dimension, and n + 1 offsets in one")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values) or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"offsets run from 0 to the {len(self.values)} values, and never back")

    @classmethod
    def of(cls, rows: Sequence[AnyArray]) -> Jagged:
        """Return some arrays, at least one, as one jagged array, a copy."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.concatenate(rows), offsets)

    @classmethod
    def _trusted(cls, values: AnyArray, offsets: Int64Array) -> Jagged:
        """Return a jagged array of what the reader made, without looking at it again."""
        jagged = cls.__new__(cls)
        jagged.values, jagged.offsets = values, offsets
        return jagged

    @property
    def lengths(self) -> Int64Array:
        """The length of each row, int64 of shape (n,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: SupportsIndex) -> AnyArray: ...
    @overload
    def __getitem__(self, index: slice) -> list[AnyArray]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> AnyArray | list[AnyArray]:
        """Return a row, or for a slice a list of rows; views."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        array: AnyArray = self.values[self.offsets[row] : self.offsets[row + 1]]
        return array

    def __iter__(self) -> Iterator[AnyArray]:
        """Yield each row, a view."""
        return iter(self.rows())

    def rows(self) -> list[AnyArray]:
        """Return all rows, as views."""
        values = self.values
        return [values[begin:end] for begin, end in itertools.pairwise(self.offsets.tolist())]

    def padded(self, fill: Any = 0, *, length: int | None = None) -> AnyArray:
        """Return one array with a row for each, filled up at its end.

        Parameters
        ----------
        fill : scalar, default 0
            What follows the elements of a row.
        length : int, optional
            Elements of each row of the result; longer rows are cut. By default the length of the longest.

        Returns
        -------
        array of shape (n, length, ...)
        """
        if length is None:
            length = int(self.lengths.max(initial=0))
        out = np.empty((len(self), length, *self.values.shape[1:]), self.values.dtype)
        self.pad_into(out, fill)
        return out

    def pad_into(self, out: AnyArray, fill: Any = 0) -> None:
        """Do what `padded` does, into an array of shape ``(n, length, ...)`` and the dtype of the values."""
        values = np.ascontiguousarray(self.values)
        shape = (len(self), *out.shape[1:2], *values.shape[1:])
        if out.dtype != values.dtype or out.shape != shape or not out.flags.c_contiguous or values.dtype.hasobject:
            raise ValueError(f"out must be {values.dtype} of shape {shape} in C order, not {out.dtype} of {out.shape}")
        if not out.size:
            return
        element = np.full(values.shape[1:], fill, values.dtype)
        raw = np.frombuffer(element.tobytes(), np.uint8)
        pad_rows(
            values.reshape(-1).view(np.uint8),
            self.offsets,
            element.nbytes,
            raw if raw.any() else raw[:0],
            out.reshape(-1).view(np.uint8).reshape(len(self), -1),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Jagged):
            return NotImplemented
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]  # mutable, as arrays are

    def __repr__(self) -> str:
        inner = "".join(f", {size}" for size in self.values.shape[1:])
        return f"Jagged({len(self)} rows, {len(self.values)} values{inner}, {self.values.dtype})"
