"""The spans of an annotation layer as tensors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from guideloom._typing import AnyArray
from guideloom.datasets.spans import DocumentLayout, Spans
from guideloom.pytorch.tensors import as_tensor


class TensorSpans:
    """`guideloom.Spans` as tensors: the spans of one layer that touch the windows of a batch.

    Its arrays are tensors, made when they are first asked for, without a copy where they stay in memory. Unsigned
    integers of 16 bits and more are int64, and structured values a dict of tensors by field.

    Parameters
    ----------
    spans : Spans
        What the tensors show.
    device : torch.device, optional
        Where they lie; in memory by default.
    non_blocking : bool
        Whether copies to the device are not waited for.
    """

    def __init__(self, spans: Spans, device: torch.device | None = None, *, non_blocking: bool = False) -> None:
        self.spans = spans
        self._device = device
        self._non_blocking = non_blocking

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self.spans)

    def __repr__(self) -> str:
        return f"Tensor{self.spans!r}"

    @property
    def window(self) -> int:
        """Elements of a window."""
        return self.spans.window

    @property
    def num_windows(self) -> int:
        """Windows of the batch."""
        return self.spans.num_windows

    @functools.cached_property
    def row_offsets(self) -> torch.Tensor:
        """Where the spans of each window begin, and their number: int64 of shape (num_windows + 1,)."""
        return self._tensor(self.spans.row_offsets)

    @functools.cached_property
    def start(self) -> torch.Tensor:
        """Where each span begins in its window, cut at the edge: int64 of shape (n,)."""
        return self._tensor(self.spans.start)

    @functools.cached_property
    def end(self) -> torch.Tensor:
        """Where each span ends in its window, cut at the edge: int64 of shape (n,)."""
        return self._tensor(self.spans.end)

    @functools.cached_property
    def true_start(self) -> torch.Tensor:
        """Where each span begins in the stream: int64 of shape (n,)."""
        return self._tensor(self.spans.true_start)

    @functools.cached_property
    def true_end(self) -> torch.Tensor:
        """Where each span ends in the stream: int64 of shape (n,)."""
        return self._tensor(self.spans.true_end)

    @functools.cached_property
    def values(self) -> Any:
        """The items of all payloads, back to back: a tensor, or a dict of some; or the list of decoded payloads."""
        values = self.spans.values
        if isinstance(values, list):
            return values
        if values.dtype.names is None:
            return self._tensor(values)
        return {name: self._tensor(np.ascontiguousarray(values[name])) for name in values.dtype.names}

    @functools.cached_property
    def offsets(self) -> torch.Tensor | None:
        """Where the items of each span begin in `values`, and their number; None where `values` is a list."""
        return None if self.spans.offsets is None else self._tensor(self.spans.offsets)

    @functools.cached_property
    def payloads(self) -> list[Any]:
        """The payload of each span; tensors are views of `values`."""
        values = self.values
        if isinstance(values, list):
            return values
        assert self.spans.offsets is not None
        lengths = np.diff(self.spans.offsets).tolist()
        if isinstance(values, dict):
            columns = [tensor.split(lengths) for tensor in values.values()]
            return [dict(zip(values, parts, strict=True)) for parts in zip(*columns, strict=True)]
        return list(values.split(lengths))

    def row(self, number: int) -> TensorSpans:
        """Return the spans of one window of the batch, as tensors of their own."""
        return TensorSpans(self.spans.row(number), self._device, non_blocking=self._non_blocking)

    def element_index(self) -> torch.Tensor:
        """Return which span covers each element of each window; see `guideloom.Spans.element_index`."""
        return self._tensor(self.spans.element_index())

    def document_layout(self) -> DocumentLayout:
        """Return how the windows divide into documents; see `guideloom.Spans.document_layout`."""
        document_ids, position_ids, cu_seqlens, max_seqlen = self.spans.document_layout()
        return DocumentLayout(
            self._tensor(document_ids), self._tensor(position_ids), self._tensor(cu_seqlens), max_seqlen
        )

    def to(self, device: torch.device | str | None, *, non_blocking: bool = False) -> TensorSpans:
        """Return the same spans as tensors on a device."""
        return TensorSpans(self.spans, None if device is None else torch.device(device), non_blocking=non_blocking)

    def _tensor(self, array: AnyArray) -> torch.Tensor:
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        tensor = as_tensor(array)
        return tensor if self._device is None else tensor.to(self._device, non_blocking=self._non_blocking)


def as_tensors(item: AnyArray | Spans) -> torch.Tensor | TensorSpans:
    """Return what a batch of windows holds under some name, as tensors."""
    return TensorSpans(item) if isinstance(item, Spans) else as_tensor(item)


def row_of(item: torch.Tensor | TensorSpans, number: int) -> torch.Tensor | TensorSpans:
    """Return what one window of a batch holds."""
    return item.row(number) if isinstance(item, TensorSpans) else item[number]
