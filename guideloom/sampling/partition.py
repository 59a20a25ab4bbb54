"""Who reads what: the positions of each rank's batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guideloom._typing import Int64Array, as_int


@dataclass(frozen=True, slots=True)
class Rows:
    """Some consecutive batches of one rank.

    Parameters
    ----------
    positions : int64 array of shape (sum of `valid`,)
        Positions in the epoch's order, batch after batch.
    valid : list of int
        Rows of each batch that hold samples.
    total : list of int
        Rows of each batch, padding included.
    """

    positions: Int64Array
    valid: list[int]
    total: list[int]


@dataclass(frozen=True, slots=True)
class Partition:
    """How an epoch is dealt out: a global step takes the next W·B positions, rank r the r-th B of them.

    The tail of R < W·B positions is dropped, or dealt out as evenly as can be: rank r takes positions
    ⌊R·r/W⌋ to ⌊R·(r+1)/W⌋ of it, in a batch of ⌈R/W⌉ rows, so that every rank takes the same number of steps.

    Parameters
    ----------
    batch_size : int
        Samples per rank and step (B), at least 1.
    rank, world_size : int
        This rank (r) of so many (W), ``0 <= rank < world_size``.
    drop_last : bool
        Whether the epoch ends where the last full step does.

    Raises
    ------
    ValueError, TypeError
        If a number is out of range, or not an integer.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "rank", "world_size"):
            object.__setattr__(self, name, as_int(getattr(self, name), name))
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.world_size < 1:
            raise ValueError(f"world_size must be at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in 0 .. {self.world_size - 1} (world_size - 1), not {self.rank}")

    @property
    def step_size(self) -> int:
        """Positions that a full step takes from all ranks together, W·B."""
        return self.batch_size * self.world_size

    @property
    def pads(self) -> bool:
        """Whether the last batch of an epoch may hold rows without a sample."""
        return not self.drop_last and self.world_size > 1

    def num_steps(self, remaining: int) -> int:
        """Return the steps that so many positions take."""
        return remaining // self.step_size if self.drop_last else -(-remaining // self.step_size)

    def rows(self, start: int, first: int, count: int, length: int) -> Rows:
        """Return what this rank reads in some steps.

        Parameters
        ----------
        start : int
            Position at which step 0 begins.
        first, count : int
            Steps ``first .. first + count``.
        length : int
            Samples in the epoch.
        """
        begin = start + first * self.step_size
        full = min(count, (length - begin) // self.step_size)
        steps = begin + np.arange(full, dtype=np.int64) * self.step_size + self.rank * self.batch_size
        rows = np.arange(self.batch_size if full else 0, dtype=np.int64)  # one batch may ask for more than there is
        positions = (steps[:, None] + rows).reshape(-1)
        valid, total = [self.batch_size] * full, [self.batch_size] * full
        if full < count:
            begin += full * self.step_size
            tail = length - begin
            low, high = tail * self.rank // self.world_size, tail * (self.rank + 1) // self.world_size
            positions = np.concatenate([positions, np.arange(begin + low, begin + high, dtype=np.int64)])
            valid.append(high - low)
            total.append(-(-tail // self.world_size))
        return Rows(positions, valid, total)
