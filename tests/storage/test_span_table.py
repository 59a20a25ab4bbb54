"""The span table against plain Python: rows, content, and that its index never hides a span."""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.storage.span_table import (
    INDEX_BYTES,
    LEAST_BLOCK_ELEMENTS,
    MAX_SPAN_ELEMENTS,
    MOST_BLOCK_ELEMENTS,
    SPAN_BYTES,
    SpanTable,
    check_spans,
    num_blocks,
)

Span = tuple[int, int, bytes]


@st.composite
def shards(draw: st.DrawFn) -> tuple[int, list[Span]]:
    """A shard's elements and its spans: gaps, overlaps, empty ones, some longer than many blocks."""
    num_elements = draw(st.sampled_from([0, 1, 5, 1023, 1024, 1025, 5000, 40_000, 3 * 2**32]))
    scale = draw(st.sampled_from([3, 700, 5000, 2**31]))
    positions = st.integers(0, num_elements)
    starts = sorted(draw(st.lists(positions, max_size=40)))
    spans = []
    for start in starts:
        end = min(start + draw(st.integers(0, scale)), num_elements)
        spans.append((start, end, draw(st.binary(max_size=3))))
    return num_elements, spans


def table_of(spans: list[Span], cuts: list[int], seed: int) -> tuple[SpanTable, list[tuple[int, ...]]]:
    """Append spans in chunks that end at these places."""
    table = SpanTable(file_seed=seed)
    rows: list[tuple[int, ...]] = []
    for low, high in zip([0, *cuts], [*cuts, len(spans)], strict=True):
        chunk = spans[low:high]
        start, end = (np.array([span[i] for span in chunk], np.int64) for i in range(2))
        payload = np.frombuffer(b"".join(span[2] for span in chunk), np.uint8)
        sizes = np.array([len(span[2]) for span in chunk], np.int64)
        rows += table.append(start, end, payload, sizes).tolist()
    return table, rows


@given(shards(), st.data())
def test_rows_and_index(shard: tuple[int, list[Span]], data: st.DataObject) -> None:
    num_elements, spans = shard
    cuts = sorted(data.draw(st.lists(st.integers(0, len(spans)), max_size=3)))
    table, rows = table_of(spans, cuts, seed=77)
    expected = []
    for number, (start, end, payload) in enumerate(spans):
        row = struct.pack("<III", start % 2**32, end - start, len(payload))
        checksum = google_crc32c.value(struct.pack("<IQ", 77, number) + row + payload)
        expected.append((*struct.unpack("<III", row), checksum))
    assert rows == expected

    block_elements, index = table.finish(num_elements)
    assert block_elements & (block_elements - 1) == 0
    assert len(index) == num_blocks(num_elements, block_elements) + 1
    assert block_elements == MOST_BLOCK_ELEMENTS or len(index) - 1 <= max(1, len(spans) // 8)
    for block, (lowest, first, offset) in enumerate(index.tolist()):
        at = block * block_elements
        reaching = [i for i, (start, end, _) in enumerate(spans) if end > at or start >= at]
        assert lowest == min(reaching, default=len(spans))
        assert first == sum(start < at for start, _, _ in spans)
        assert offset == sum(len(payload) for _, _, payload in spans[:lowest])


@given(shards(), st.lists(st.integers(0, 40), max_size=3))
def test_the_same_however_it_is_appended(shard: tuple[int, list[Span]], cuts: list[int]) -> None:
    num_elements, spans = shard
    whole, _ = table_of(spans, [], seed=1)
    parts, _ = table_of(spans, sorted(min(cut, len(spans)) for cut in cuts), seed=2)
    assert whole.content_hash() == parts.content_hash()
    block_elements, index = whole.finish(num_elements)
    other_elements, other_index = parts.finish(num_elements)
    assert block_elements == other_elements
    assert index.tolist() == other_index.tolist()


def test_the_cost_is_by_the_span() -> None:
    spans = [(start, start + 100, b"") for start in range(0, 1_000_000, 100)]
    table, rows = table_of(spans, [], seed=0)
    block_elements, index = table.finish(1_000_000)
    assert block_elements == LEAST_BLOCK_ELEMENTS
    assert len(rows) * SPAN_BYTES + len(index) * INDEX_BYTES <= 0.2 * 1_000_000
    few, _ = table_of(spans[:80], [], seed=0)
    assert len(few.finish(10**12)[1]) <= 10**12 // 2**30 + 2
    assert len(few.finish(10**12)[1]) < 1000


@pytest.mark.parametrize(
    ("start", "end", "size", "why"),
    [
        ([-1], [2], [0], "before the first"),
        ([3], [2], [0], "ends before it starts"),
        ([3], [11], [0], "after the 10 elements"),
        ([3, 2], [4, 4], [0, 0], "sort the spans"),
        ([1], [4], [0], "sort the spans"),
        ([3], [4], [2**32], "payload of more than"),
    ],
)
def test_what_cannot_follow(start: list[int], end: list[int], size: list[int], why: str) -> None:
    arrays = [np.array(column, np.int64) for column in (start, end, size)]
    with pytest.raises(ValueError, match=why):
        check_spans(*arrays, after=2, num_elements=10)


def test_a_span_too_long_for_a_row() -> None:
    limits = [np.array([value], np.int64) for value in (0, MAX_SPAN_ELEMENTS + 1, 0)]
    with pytest.raises(ValueError, match="has more than 4294967295 elements"):
        check_spans(*limits, after=0, num_elements=2**40)
