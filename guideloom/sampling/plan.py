"""One epoch as a function of the step number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guideloom._typing import Int64Array
from guideloom.sampling.order import Order
from guideloom.sampling.partition import Partition


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What one rank reads in an epoch, or in the rest of one.

    Parameters
    ----------
    order : Order
        Position to sample.
    partition : Partition
        Step to positions.
    epoch : int
        Which epoch.
    start : int
        Position at which step 0 of the plan begins.
    """

    order: Order
    partition: Partition
    epoch: int
    start: int = 0

    @property
    def num_steps(self) -> int:
        """Steps that are left."""
        return self.partition.num_steps(self.order.length - self.start)

    def position(self, step: int) -> int:
        """Return the position at which a step begins."""
        return min(self.start + step * self.partition.step_size, self.order.length)

    def samples(self, first: int, count: int) -> tuple[Int64Array, Sequence[int], Sequence[int]]:
        """Return what some steps read.

        Returns
        -------
        samples : int64 array of shape (sum of `valid`,)
            Batch after batch.
        valid, total : sequence of int
            Rows of each batch that hold a sample, and rows it has.
        """
        rows = self.partition.rows(self.start, first, count, self.order.length)
        return self.order.samples(self.epoch, rows.positions), rows.valid, rows.total
