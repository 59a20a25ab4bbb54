import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.formats.jagged import Jagged

LENGTHS = st.lists(st.integers(0, 7), max_size=12)


@given(LENGTHS, st.sampled_from(["u1", "<i4", "<f8", "?"]), st.sampled_from([(), (2,), (3, 0)]))
def test_rows_are_the_arrays_it_was_made_of(lengths: list[int], dtype: str, shape: tuple[int, ...]) -> None:
    rows = [np.arange(n * int(np.prod(shape)) + 1)[1:].reshape(n, *shape).astype(dtype) for n in lengths]
    jagged = Jagged.of(rows) if rows else Jagged(np.empty((0, *shape), dtype), np.zeros(1, np.int64))
    assert len(jagged) == len(rows)
    assert jagged.lengths.tolist() == lengths
    for found in (list(jagged), jagged.rows(), [jagged[i] for i in range(len(rows))], jagged[:]):
        for row, expected in zip(found, rows, strict=True):
            np.testing.assert_array_equal(row, expected)
    if rows:
        np.testing.assert_array_equal(jagged[-1], rows[-1])
        assert jagged == Jagged.of(rows)
        with pytest.raises(IndexError):
            jagged[len(rows)]


@given(
    LENGTHS, st.sampled_from(["<i4", "<f4", "?"]), st.sampled_from([(), (2,)]), st.one_of(st.none(), st.integers(0, 9))
)
def test_padding_is_that_of_a_loop(lengths: list[int], dtype: str, shape: tuple[int, ...], length: int | None) -> None:
    rows = [np.ones((n, *shape), dtype) for n in lengths]
    jagged = Jagged.of(rows) if rows else Jagged(np.empty((0, *shape), dtype), np.zeros(1, np.int64))
    for fill in (0, 1):
        wide = max(lengths, default=0) if length is None else length
        expected = np.full((len(rows), wide, *shape), fill, dtype)
        for i, row in enumerate(rows):
            expected[i, : len(row)] = row[:wide]
        found = jagged.padded(fill, length=length)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_offsets_that_are_none_are_refused() -> None:
    for offsets in ([1, 3], [0, 2], [0, 2, 1, 3], [], [[0, 3]]):
        with pytest.raises(ValueError, match="offsets"):
            Jagged(np.arange(3), np.array(offsets, np.int64))
    with pytest.raises(ValueError, match="in C order"):
        Jagged(np.arange(3), np.array([0, 3])).pad_into(np.empty((1, 3), np.int32))
