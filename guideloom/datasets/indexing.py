"""Sample numbers as users give them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from guideloom._typing import AnyArray, Int64Array

Indices: TypeAlias = Sequence[int] | AnyArray | slice


def as_index(index: SupportsIndex, length: int) -> int:
    """Return the sample that an index means; negative ones count from the end, as in a list.

    Raises
    ------
    TypeError
        If `index` is not an integer (bools are not).
    IndexError
        If there is no such sample.
    """
    if isinstance(index, bool | np.bool_):
        raise TypeError("an index must be an integer, not a bool")
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(f"an index must be an integer, not {type(index).__name__}") from None
    if not -length <= number < length:
        raise IndexError(f"sample {number} is out of range: the dataset has {length}")
    return number % length


def as_indices(indices: Any, length: int) -> Int64Array:
    """Return the samples that a slice or a sequence of indices means.

    Returns
    -------
    int64 array of shape (n,)

    Raises
    ------
    TypeError
        If they are not integers.
    ValueError
        If an array has more or fewer than one dimension.
    IndexError
        If one of the samples does not exist.
    """
    if isinstance(indices, slice):
        return np.arange(*indices.indices(length), dtype=np.int64)
    if not isinstance(indices, np.ndarray):
        return np.array([as_index(index, length) for index in indices], np.int64)
    if indices.ndim != 1:
        raise ValueError(f"indices must have one dimension, not {indices.ndim}")
    if indices.dtype.kind not in "iu" and len(indices):
        raise TypeError(f"indices must be integers, not {indices.dtype}")
    if len(indices) and not (-length <= int(indices.min()) and int(indices.max()) < length):
        bad = int(indices.min()) if int(indices.min()) < -length else int(indices.max())
        raise IndexError(f"sample {bad} is out of range: the dataset has {length}")
    numbers = indices.astype(np.int64)
    return np.where(numbers < 0, numbers + length, numbers)
