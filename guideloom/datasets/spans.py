"""The spans of an annotation layer that touch some windows: what a batch holds of a layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from guideloom._speedups.painting import number_runs, paint_spans
from guideloom._typing import AnyArray, Int32Array, Int64Array
from guideloom.formats.jagged import Jagged


class DocumentLayout(NamedTuple):
    """How windows divide into documents, for attention that does not cross their edges.

    Every element lies in one run: a maximal row of elements that the same span covers, or that none does.

    Parameters
    ----------
    document_ids : int32 array of shape (num_windows, window)
        The run that each element lies in, from 0 in each window. Two elements of a window may attend to each other
        where these are equal.
    position_ids : int64 array of shape (num_windows, window)
        Place of each element in its run, from 0.
    cu_seqlens : int32 array of shape (num_runs + 1,)
        Where each run starts with the windows end to end, and their total: what attention over runs of various lengths
        takes. A window's edge ends a run.
    max_seqlen : int
        Elements of the longest run.
    """

    document_ids: Any
    position_ids: Any
    cu_seqlens: Any
    max_seqlen: int


@dataclass(frozen=True, eq=False, repr=False)
class Spans:
    """The spans of one layer that touch the windows of a batch, or a single window, which then is the only one.

    A span touches a window that holds an element of it; an empty span, the window that holds the element it stands
    before. The spans of a window come in the order of their starts. All arrays are writable.

    Parameters
    ----------
    window : int
        Elements of a window.
    row_offsets : int64 array of shape (num_windows + 1,)
        Window ``w`` of the batch has the spans ``row_offsets[w]`` to ``row_offsets[w + 1]``.
    start, end : int64 array of shape (n,)
        Elements of the window: where each span begins and ends in it, cut at its edges.
    true_start, true_end : int64 array of shape (n,)
        Elements of the whole stream: where it begins and ends there.
    values : array of shape (offsets[-1],), or list of length n
        The items of all payloads, back to back, where the layer holds arrays of one dtype; else the payloads, decoded.
    offsets : int64 array of shape (n + 1,), or None
        Span ``i`` has the items ``offsets[i]`` to ``offsets[i + 1]``. ``None`` where `values` is a list.
    """

    window: int
    row_offsets: Int64Array
    start: Int64Array
    end: Int64Array
    true_start: Int64Array
    true_end: Int64Array
    values: AnyArray | list[Any]
    offsets: Int64Array | None

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self.start)

    def __repr__(self) -> str:
        payloads = "decoded" if isinstance(self.values, list) else f"of {len(self.values):,} {self.values.dtype}"
        return f"Spans({len(self):,} in {self.num_windows:,} windows of {self.window:,}, payloads {payloads})"

    @property
    def num_windows(self) -> int:
        """Windows of the batch."""
        return len(self.row_offsets) - 1

    @functools.cached_property
    def payloads(self) -> list[Any]:
        """The payload of each span; arrays are views of `values`."""
        return self.values if isinstance(self.values, list) else self.jagged.rows()

    @property
    def jagged(self) -> Jagged:
        """The payloads as one jagged array, a row a span, where `values` is an array.

        Raises
        ------
        TypeError
            If `values` is a list.
        """
        if isinstance(self.values, list) or self.offsets is None:
            raise TypeError("these payloads are no arrays; `payloads` lists them")
        return Jagged(self.values, self.offsets)

    def row(self, number: int) -> Spans:
        """Return the spans of one window of the batch, as arrays of their own.

        Raises
        ------
        IndexError
            If the batch has no such window.
        """
        if not -self.num_windows <= number < self.num_windows:
            raise IndexError(f"window {number} is out of range: the batch has {self.num_windows}")
        number %= self.num_windows
        low, high = self.row_offsets[number : number + 2].tolist()
        values, offsets = self.values, self.offsets
        if isinstance(values, list):
            values = values[low:high]
        else:
            assert offsets is not None
            values = values[offsets[low] : offsets[high]].copy()
            offsets = offsets[low : high + 1] - offsets[low]
        return Spans(
            window=self.window,
            row_offsets=np.array([0, high - low]),
            start=self.start[low:high].copy(),
            end=self.end[low:high].copy(),
            true_start=self.true_start[low:high].copy(),
            true_end=self.true_end[low:high].copy(),
            values=values,
            offsets=offsets,
        )

    def element_index(self) -> Int32Array:
        """Return which span covers each element of each window.

        Returns
        -------
        int32 array of shape (num_windows, window)
            An index into the arrays of the spans: the last of those that cover the element, -1 where none does.
        """
        painted = np.empty((self.num_windows, self.window), np.int32)
        paint_spans(self.row_offsets, self.start, self.end, painted)
        return painted

    def document_layout(self) -> DocumentLayout:
        """Return how the windows divide into documents, the spans of this layer."""
        painted = self.element_index()
        document_ids, position_ids = np.empty_like(painted), np.empty(painted.shape, np.int64)
        starts = np.empty(painted.size + 1, np.int32)
        num_runs, longest = number_runs(painted, document_ids, position_ids, starts)
        return DocumentLayout(document_ids, position_ids, starts[: num_runs + 1].copy(), longest)
