"""The slow truth: which elements a window holds, in which order, for whom. Plain Python and NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guideloom._typing import AnyArray
from tests.sampling.shuffle_reference import ReferencePermutation


@dataclass(frozen=True)
class ReferenceWindows:
    """Windows over the concatenation of shards.

    Parameters
    ----------
    rows : array
        All elements, structured or plain.
    window, stride, offset : int
        As `open_dataset` takes them.
    """

    rows: AnyArray
    window: int
    stride: int
    offset: int = 0

    @property
    def starts(self) -> list[int]:
        """First element of each window."""
        return list(range(self.offset, len(self.rows) - self.window + 1, self.stride))

    def __len__(self) -> int:
        return len(self.starts)

    def batch(
        self, samples: Sequence[int], fields: Sequence[str] | Mapping[str, Any] | None = None
    ) -> dict[str, AnyArray]:
        """Return the windows of these numbers, field by field."""
        starts = self.starts
        windows = [self.rows[starts[sample] : starts[sample] + self.window] for sample in samples]
        names = self.rows.dtype.names or ("tokens",)
        wanted = dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(names if fields is None else fields)
        batch = {}
        for name, dtype in wanted.items():
            column = self.rows[name] if self.rows.dtype.names else self.rows
            stored = column.dtype.newbyteorder("=")
            shape = (len(samples), self.window, *column.shape[1:])
            parts = [part[name] if self.rows.dtype.names else part for part in windows]
            array = np.array(parts, stored).reshape(shape)
            with np.errstate(over="ignore"):
                batch[name] = array.astype(stored if dtype is None else np.dtype(dtype).newbyteorder("="))
        return batch


def assert_equal(found: Mapping[str, AnyArray], expected: Mapping[str, AnyArray]) -> None:
    """Compare two batches, bit by bit, and see that the caller may do with the arrays what he likes."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name
        assert found[name].flags.c_contiguous
        assert found[name].flags.writeable
        assert found[name].flags.aligned
        assert found[name].base is None, "the array is a view of something larger"


def epoch_order(length: int, *, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """Return the samples of an epoch in their order."""
    if not shuffle or not length:
        return list(range(length))
    permutation = ReferencePermutation(length, seed, epoch)
    return [permutation.at(position) for position in range(length)]


Step = list[list[int]]


def deal(order: Sequence[int], *, world_size: int, batch_size: int, drop_last: bool) -> list[Step]:
    """Deal samples out: for each step, the samples of each rank."""
    steps, left = [], list(order)
    while len(left) >= world_size * batch_size:
        steps.append([left[rank * batch_size : (rank + 1) * batch_size] for rank in range(world_size)])
        left = left[world_size * batch_size :]
    if left and not drop_last:
        bounds = [len(left) * rank // world_size for rank in range(world_size + 1)]
        steps.append([left[low:high] for low, high in itertools.pairwise(bounds)])
    return steps
