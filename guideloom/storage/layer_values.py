"""Spans as users give them to a writer, checked and encoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from guideloom._typing import Int64Array, UInt8Array
from guideloom.formats.encoding import Encoding, sections_of
from guideloom.storage.span_table import check_spans


@dataclass(frozen=True, slots=True, eq=False)
class FlatSpans:
    """Spans whose payloads are arrays, in bulk: what a writer takes in place of a list of spans.

    Parameters
    ----------
    start, end : int array-like of shape (n,)
        Elements, relative to what is appended; starts do not decrease.
    values : array-like of shape (offsets[-1], ...)
        The items of all payloads, back to back.
    offsets : int array-like of shape (n + 1,)
        Span ``i`` has the items ``offsets[i]`` to ``offsets[i + 1]``; from 0 to their number.
    """

    start: npt.ArrayLike
    end: npt.ArrayLike
    values: npt.ArrayLike
    offsets: npt.ArrayLike


SpansGiven: TypeAlias = Iterable[tuple[int, int, Any]] | FlatSpans


class EncodedSpans(NamedTuple):
    """Spans as `LayerFile.append` takes them, relative to what is appended."""

    start: Int64Array
    end: Int64Array
    payload: UInt8Array
    payload_bytes: Int64Array


def encode_spans(encoding: Encoding, spans: SpansGiven, *, after: int, num_elements: int) -> EncodedSpans:
    """Return some spans checked and encoded.

    Parameters
    ----------
    encoding : Encoding
        Of their payloads.
    spans : iterable of (start, end, value), or FlatSpans
        In the order of their starts.
    after : int
        The start of the span before them, 0 for none.
    num_elements : int
        Elements that there are.

    Raises
    ------
    ValueError or TypeError
        If positions are no integers, out of order or out of range, a span or its payload is too large, or the encoding
        refuses a value.
    """
    if isinstance(spans, FlatSpans):
        encoded = _encode_flat(encoding, spans)
    else:
        encoded = _encode_each(encoding, [tuple(span) for span in spans])
    check_spans(encoded.start, encoded.end, encoded.payload_bytes, after=after, num_elements=num_elements)
    return encoded


def _encode_each(encoding: Encoding, spans: Sequence[tuple[Any, ...]]) -> EncodedSpans:
    for i, span in enumerate(spans):
        if len(span) != 3:
            raise ValueError(f"span {i} has {len(span)} parts, not a start, an end and a value")
    payloads = []
    for i, (_, _, value) in enumerate(spans):
        try:
            payloads.append(bytes(encoding.encode(value)))
        except (TypeError, ValueError) as error:
            error.add_note(f"in the payload of span {i}")
            raise
    return EncodedSpans(
        _integers([span[0] for span in spans], "the starts of spans"),
        _integers([span[1] for span in spans], "the ends of spans"),
        np.frombuffer(b"".join(payloads), np.uint8),
        np.array([len(payload) for payload in payloads], np.int64),
    )


def _encode_flat(encoding: Encoding, spans: FlatSpans) -> EncodedSpans:
    sections = sections_of(encoding)
    if len(sections) != 1:
        raise TypeError(f"FlatSpans are for payloads of one array each, not for {encoding!r}; give a list of spans")
    (values,) = encoding.to_arrays(spans.values)  # type: ignore[attr-defined]  # a NumericEncoding, since it has sections
    start, end = _integers(spans.start, "start"), _integers(spans.end, "end")
    offsets = _integers(spans.offsets, "offsets")
    if len(end) != len(start) or len(offsets) != len(start) + 1:
        raise ValueError(f"{len(start)} starts, {len(end)} ends and {len(offsets)} offsets, not n, n and n + 1")
    if offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must rise from 0 to {len(values)}, the number of values")
    payload = np.frombuffer(values, np.uint8)
    return EncodedSpans(start, end, payload, np.diff(offsets) * sections[0].row_bytes)


def _integers(values: npt.ArrayLike, name: str) -> Int64Array:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise TypeError(f"{name} must be integers in one dimension, not {array.dtype} of shape {array.shape}")
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= 2**63:
        raise ValueError(f"{name} do not fit in 63 bits")
    return array.astype(np.int64)
