"""The loader without a framework: NumPy batches, one after the other, resumable."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self

from guideloom._typing import Int64Array
from guideloom.datasets.samples import BatchT, Dataset
from guideloom.loader.engine import Engine, EpochIterator, check_dataset
from guideloom.loader.topology import rank_and_world_size
from guideloom.sampling.order import Shuffle
from guideloom.sampling.partition import Partition
from guideloom.scheduler.lookahead import MOST_BYTES_IN_FLIGHT


class Loader(Generic[BatchT]):
    """Batches of a dataset for a training loop, read ahead, with a position that can be saved and restored.

    Iterating gives one epoch; iterating again gives the next. The position names the next batch that the loop has not
    received, whatever was read ahead. After a loop that was left in mid-epoch, the next one begins the next epoch;
    after ``load_state_dict`` it continues where the state says.

    Parameters
    ----------
    dataset : StreamDataset or DocumentDataset
        What to read.
    batch_size : int, default 1
        Samples a batch, on each rank.
    shuffle : bool, "global" or None, default False
        ``True`` and ``"global"`` mean a seeded permutation of all samples, another one each epoch.
    seed : int, default 0
        Unsigned 64-bit.
    rank, world_size : int, optional
        Which part of each global step is read; by default those of ``torch.distributed`` if it is initialised, else
        of the launcher (torchrun, srun, mpirun), else 0 and 1.
    prefetch : int, optional
        Batches to read ahead; by default 48 MiB of them, but 4 to 128.
    max_bytes_in_flight : int, default 268,435,456
        Bytes of all batches that are read ahead; one batch is always allowed.
    drop_last : bool, default False
        Whether to leave out the samples after the last full step. Without it the last step may be smaller; with
        several ranks its rows may then be padded with zeros, and every batch has an item ``num_valid``, its rows that
        are samples.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range.

    Examples
    --------
    >>> loader = Loader(dataset, batch_size=8, shuffle=True, seed=17)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     step(batch["tokens"])
    """

    def __init__(
        self,
        dataset: Dataset[Any, BatchT],
        batch_size: int = 1,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int | None = None,
        max_bytes_in_flight: int = MOST_BYTES_IN_FLIGHT,
        drop_last: bool = False,
    ) -> None:
        check_dataset(dataset)
        partition = Partition(batch_size, *rank_and_world_size(rank, world_size), drop_last)
        self._engine: Engine[BatchT] = Engine(
            dataset,
            partition,
            shuffle=shuffle,
            seed=seed,
            prefetch=prefetch,
            max_bytes_in_flight=max_bytes_in_flight,
            deliver=_as_it_is,
        )

    @property
    def dataset(self) -> Dataset[Any, BatchT]:
        """What is read."""
        return self._engine.dataset

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return self._engine.num_steps

    def __iter__(self) -> EpochIterator[BatchT]:
        """Begin an epoch, or continue one where a loaded state says."""
        return self._engine.iterate()

    def __repr__(self) -> str:
        return f"Loader({self._engine.describe()}"

    def state_dict(self) -> dict[str, Any]:
        """Return the position: at most 1 kB of plain JSON types, the same on every rank.

        It names the next batch that was not received. After the last batch of an epoch that is the first of the next.
        """
        return self._engine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, on any number of ranks and with any batch size.

        Raises
        ------
        StateMismatchError
            If the state belongs to another dataset, window or order; it lists every difference.
        StateError
            If the state is damaged or of another version. In either case the loader stays as it was.
        """
        self._engine.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Make an epoch the next one; naming the current one does nothing.

        Raises
        ------
        ValueError
            If a state of the middle of another epoch was loaded and has not been continued.
        """
        self._engine.set_epoch(epoch)

    def sample_ids(self, step: int, epoch: int | None = None) -> Int64Array:
        """Return which samples this rank's batch at some step holds, past or future, without reading it.

        Parameters
        ----------
        step : int
            Step of the epoch.
        epoch : int, optional
            The present epoch by default.

        Returns
        -------
        int64 array of shape (rows,)

        Raises
        ------
        IndexError
            If the epoch has no such step.
        """
        return self._engine.sample_ids(step, epoch)

    def close(self) -> None:
        """Stop reading ahead and free files, threads and loop. May be called again."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _as_it_is(batch: BatchT) -> BatchT:
    return batch
