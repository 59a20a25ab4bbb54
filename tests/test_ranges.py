"""Ranges: sorted, split and merged, against plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guideloom.ranges import ByteRanges

Row = tuple[int, int, int, int, int]


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows of file, offset, length, buffer and position; close to each other, and beyond 32 bits."""
    base = draw(st.sampled_from([0, 2**31 - 20, 2**40]))
    row = st.tuples(
        st.integers(0, 2), st.integers(base, base + 60), st.integers(0, 25), st.integers(0, 3), st.integers(0, 2**40)
    )
    return draw(st.lists(row, max_size=25))


def ranges_of(rows: list[Row]) -> ByteRanges:
    columns = list(zip(*rows, strict=True)) or [()] * 5
    dtypes = (np.int32, np.int64, np.int64, np.int32, np.int64)
    return ByteRanges(
        ["c", "a", "b"], *(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True))
    )


def rows_of(ranges: ByteRanges) -> list[Row]:
    columns = (ranges.file, ranges.offset, ranges.length, ranges.buffer, ranges.position)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(tables())
def test_sorting_is_stable_by_file_and_offset(rows: list[Row]) -> None:
    found, order = ranges_of(rows).sort()
    expected = sorted(range(len(rows)), key=lambda i: rows[i][:2])
    assert order.tolist() == expected
    assert rows_of(found) == [rows[i] for i in expected]


@given(tables(), st.integers(1, 30))
def test_splitting_cuts_long_ranges_into_parts_for_the_same_places(rows: list[Row], most: int) -> None:
    found, origin = ranges_of(rows).split(most)
    expected = []
    for number, (file, offset, length, buffer, position) in enumerate(rows):
        for begin in range(0, max(length, 1), most):
            part = (file, offset + begin, min(length - begin, most), buffer, position + begin)
            expected.append((number, part))
    assert list(zip(origin.tolist(), rows_of(found), strict=True)) == expected


@given(tables(), st.integers(0, 12), st.integers(1, 60))
@example([(0, 0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 0, 2, 0, 0)], 0, 1)
def test_coalescing_covers_every_range_with_few_reads(rows: list[Row], gap: int, most: int) -> None:
    ranges = ranges_of(rows)
    plan = ranges.coalesce(max_gap_bytes=gap, max_coalesced_bytes=most)
    reads = rows_of(plan.reads)
    assert reads == sorted(reads)
    members: dict[int, list[Row]] = {}
    for row, read, shift in zip(rows, plan.read.tolist(), plan.shift.tolist(), strict=True):
        members.setdefault(read, []).append(row)
        file, offset, length, buffer, position = reads[read]
        assert (file, offset + shift, buffer, position) == (row[0], row[1], read, 0)
        assert shift + row[2] <= length
    assert sorted(members) == list(range(len(reads)))
    for number, (_, offset, length, _, _) in enumerate(reads):
        covered = sorted((row[1], row[1] + row[2]) for row in members[number])
        assert covered[0][0] == offset
        assert max(end for _, end in covered) == offset + length
        assert length <= max(most, max(end - begin for begin, end in covered))
        end = offset
        for begin, stop in covered:  # no gap is longer than it may be
            assert begin - end <= gap
            end = max(end, stop)
    for number, ((file, offset, length, *_), (next_file, next_offset, *_)) in enumerate(pairwise(reads), 1):
        if file == next_file and next_offset - (offset + length) <= gap:  # two reads only where one is too long
            following = next(row for row in members[number] if row[1] == next_offset)
            assert next_offset + following[2] - offset > most


def test_coalescing_counts_bytes_between_and_in_all() -> None:
    ranges = ByteRanges.of([("a", 100, 10), ("a", 114, 6), ("a", 125, 1), ("b", 0, 5)])
    plan = ranges.coalesce(max_gap_bytes=4, max_coalesced_bytes=20)
    assert [(row[1], row[2]) for row in rows_of(plan.reads)] == [(100, 20), (125, 1), (0, 5)]
    assert (plan.read.tolist(), plan.shift.tolist()) == ([0, 0, 1, 2], [0, 14, 0, 0])


@pytest.mark.parametrize(("gap", "most"), [(-1, 10), (0, 0)])
def test_bounds_of_coalescing_are_checked(gap: int, most: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        ByteRanges.of([]).coalesce(max_gap_bytes=gap, max_coalesced_bytes=most)


def test_parts_have_a_length() -> None:
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        ByteRanges.of([]).split(0)
