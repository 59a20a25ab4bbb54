"""Indices mean what they mean for a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guideloom.datasets.indexing import as_index, as_indices
from tests.datasets.opened import in_memory
from tests.streams import counted

TEN = list(range(10))


@pytest.mark.parametrize(
    "three", [3, np.int64(3), np.uint8(3), np.uint64(3), np.int8(3), np.array(3), torch.tensor(3)], ids=repr
)
def test_any_integer_is_an_index(three: Any) -> None:
    """C38: NumPy integers, and tensors without dimensions."""
    assert as_index(three, 10) == 3
    assert type(as_index(three, 10)) is int
    assert as_indices([three], 10).tolist() == [3]


@pytest.mark.parametrize("index", [True, np.True_, 3.0, np.float64(3), "3", None, (3,), [3], b"\3", np.array([3, 4])])
def test_what_is_no_integer_is_refused(index: Any) -> None:
    """C38: a bool, a float or a text is a mistake, not a number."""
    with pytest.raises(TypeError, match="an index must be an integer"):
        as_index(index, 10)
    with pytest.raises(TypeError):
        as_indices([index], 10)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (-1, 9),
        (-10, 0),
        (np.int8(-1), 9),
        (np.int32(-10), 0),
        (9, 9),
        (-11, None),
        (10, None),
        (2**70, None),
        (-(2**70), None),
    ],
)
def test_negative_indices_count_from_the_end(index: Any, expected: int | None) -> None:
    """C37."""
    for indices in (index, [index], [0, index]):
        if expected is None:
            with pytest.raises(IndexError, match=rf"sample {int(index)} is out of range: the dataset has 10"):
                as_indices(indices, 10) if isinstance(indices, list) else as_index(indices, 10)
        elif isinstance(indices, list):
            assert as_indices(indices, 10).tolist()[-1] == expected
        else:
            assert as_index(indices, 10) == expected


@given(st.integers(0, 12), st.data())
def test_a_slice_or_a_list_means_what_it_means_for_a_list(length: int, data: st.DataObject) -> None:
    everything = list(range(length))
    part = data.draw(st.slices(length))
    assert as_indices(part, length).tolist() == everything[part]
    numbers = data.draw(st.lists(st.integers(-length - 1, length), max_size=5))
    for dtype in (None, np.int8, np.int64):
        indices = numbers if dtype is None else np.array(numbers, dtype)
        try:
            expected = [everything[number] for number in numbers]
        except IndexError:
            with pytest.raises(IndexError):
                as_indices(indices, length)
        else:
            found = as_indices(indices, length)
            assert found.tolist() == expected
            assert (found.dtype, found.shape) == (np.dtype(np.int64), (len(expected),))


@pytest.mark.parametrize(
    "indices", [[], (), range(0), np.array([]), np.array([], np.uint8), slice(0, 0), slice(5, 5, -1)]
)
def test_no_index_is_no_sample(indices: Any) -> None:
    """C37: an empty batch is a batch."""
    assert as_indices(indices, 10).shape == (0,)
    with in_memory(counted([20]), window=2).sync_reader() as reader:
        assert reader.read_batch(indices)["tokens"].shape == (0, 2)


@pytest.mark.parametrize(
    "indices", [np.array([0.0, 1.0]), np.array([True, False]), [0, 1.5], ["0"], "01", np.array(["0"]), 3, None]
)
def test_lists_of_no_integers_are_refused(indices: Any) -> None:
    with pytest.raises(TypeError):
        as_indices(indices, 10)


def test_arrays_have_one_dimension() -> None:
    with pytest.raises(ValueError, match="one dimension, not 2"):
        as_indices(np.zeros((2, 2), np.int64), 10)


@pytest.mark.parametrize(
    ("base", "index", "expected"),
    [(np.int32(2_000_000_000), np.int32(200_000_000), 2_200_000_000), (np.uint8(250), np.uint8(10), 260)],
)
def test_narrow_numbers_do_not_wrap(base: Any, index: Any, expected: int) -> None:
    """C29: an index of any width is a plain number from here on, and what is added to it does not overflow."""
    assert as_index(base, 2**62) + as_index(index, 2**62) == expected
    assert int(as_indices(np.array([base]), 2**62)[0]) + int(as_indices(np.array([index]), 2**62)[0]) == expected
    assert as_indices(np.array([-1], np.int8), 2**40).tolist() == [2**40 - 1]
    with pytest.raises(IndexError, match="18446744073709551615"):
        as_indices(np.array([2**64 - 1], np.uint64), 10)


def test_readers_take_them_all() -> None:
    with in_memory(counted([20]), window=2).sync_reader() as reader:
        assert reader[np.int8(-1)]["tokens"].tolist() == [18, 19]
        assert reader[torch.tensor(3)]["tokens"].tolist() == [6, 7]
        assert reader[8:12]["tokens"].tolist() == [[16, 17], [18, 19]]
        assert reader[::-1]["tokens"][:, 0].tolist() == list(range(18, -1, -2))
        assert reader.read_batch([0, -1])["tokens"][:, 0].tolist() == [0, 18]
        assert reader.read_batch(torch.tensor([0, 9]).numpy())["tokens"][:, 0].tolist() == [0, 18]
        for narrow in (np.int32(2_000_000_000), np.uint8(250)):
            with pytest.raises(IndexError):
                reader[narrow]
