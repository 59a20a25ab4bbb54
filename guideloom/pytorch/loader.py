"""The loader for PyTorch: tensors, in a real ``torch.utils.data.DataLoader``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from guideloom._typing import Int64Array
from guideloom.datasets.documents import DocumentDataset
from guideloom.datasets.samples import NUM_VALID, Allocate
from guideloom.datasets.selection import Output
from guideloom.datasets.stream import StreamDataset
from guideloom.formats.jagged import Jagged
from guideloom.loader.engine import Engine, EpochIterator, check_dataset
from guideloom.loader.topology import rank_and_world_size
from guideloom.pytorch.jagged import Nested, Padded
from guideloom.pytorch.spans import TensorSpans, as_tensors, row_of
from guideloom.pytorch.tensors import allocate_pinned, as_tensor
from guideloom.sampling.order import Shuffle
from guideloom.sampling.partition import Partition
from guideloom.scheduler.lookahead import MOST_BYTES_IN_FLIGHT

Collate: TypeAlias = Callable[[list[Any]], Any]

_WHY_NOT = {
    "sampler": "the order comes from shuffle= and seed=, and each rank's part from rank= and world_size=",
    "batch_sampler": "the order comes from shuffle= and seed=, and each rank's part from rank= and world_size=",
    "num_workers": "reading already happens in the background; leave it at 0",
    "worker_init_fn": "there are no worker processes",
    "multiprocessing_context": "there are no worker processes",
    "persistent_workers": "there are no worker processes, and the background loop lives as long as the loader",
    "generator": "the order comes from seed=, an int",
    "prefetch_factor": "say prefetch=, the batches to read ahead",
    "timeout": "a read that fails is an error of the batch it belongs to",
    "in_order": "batches always come in order",
    "pin_memory_device": "say device=",
    "snapshot_every_n_steps": "the state always names the next batch",
}
_HARMLESS = {
    "num_workers": 0,
    "persistent_workers": False,
    "timeout": 0,
    "in_order": True,
    "pin_memory_device": "",
    "snapshot_every_n_steps": 1,
}


class _Marker(IterableDataset[Any]):
    """What frameworks find as ``loader.dataset``: iterable and without a length, so that they inject no sampler."""

    def __init__(self, dataset: StreamDataset | DocumentDataset) -> None:
        self.read = dataset

    def __repr__(self) -> str:
        return repr(self.read)

    def __iter__(self) -> Any:
        raise TypeError("iterate over the StatefulDataLoader, not over its dataset")


class StatefulDataLoader(DataLoader[Any]):
    """Batches of a dataset as tensors, read ahead, with a position that can be saved and restored.

    A real ``torch.utils.data.DataLoader``, over the engine of `guideloom.Loader`: iterating gives one epoch, iterating
    again the next. The position names the next batch that the loop has not received.

    Unsigned integers of 16 bits and more are delivered as int64, which ``nn.Embedding`` takes, unless the dataset's
    ``fields`` name a dtype; everything else as stored.

    Parameters
    ----------
    dataset : StreamDataset or DocumentDataset
        What to read.
    batch_size : int, default 1
        Samples a batch, on each rank.
    shuffle : bool, "global" or None, default None
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
        Whether to leave out the samples after the last full step. See `guideloom.Loader`.
    collate_fn : callable, Padded or Nested, optional
        Takes a list of samples, each a dict of str to tensor of shape ``(window, ...)``, or a document, and returns the
        batch. The list may be empty where a last step is padded. By default a batch of windows is a dict of str to
        tensor of shape ``(batch_size, window, ...)``, which costs no copy; numeric documents are padded, as `Padded`
        does it; and of other documents it is the list.
    device : torch.device or str, optional
        Where to bring the tensors, without waiting for the copy if `pin_memory` is on.
    pin_memory : bool, default False
        Whether to read into page-locked memory; has no effect without an accelerator.
    **others
        Other arguments of torch's loaders are refused, with our way to the same end.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, or makes no sense here.

    Examples
    --------
    >>> loader = StatefulDataLoader(dataset, batch_size=8, shuffle=True, seed=17, drop_last=True)  # doctest: +SKIP
    >>> state = loader.state_dict()  # doctest: +SKIP
    """

    # Accelerate rebuilds every loader that is not marked as prepared, and then drops what the other ranks read.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(
        self,
        dataset: StreamDataset | DocumentDataset,
        batch_size: int = 1,
        shuffle: Shuffle = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int | None = None,
        max_bytes_in_flight: int = MOST_BYTES_IN_FLIGHT,
        drop_last: bool = False,
        collate_fn: Collate | Padded | Nested | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
        **others: Any,
    ) -> None:
        for name, value in others.items():
            if name not in _WHY_NOT:
                near = difflib.get_close_matches(name, inspect.signature(StatefulDataLoader).parameters, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"StatefulDataLoader has no argument {name!r}{hint}")
            if value is not None and value != _HARMLESS.get(name):
                raise ValueError(f"{name}={value!r} makes no sense here: {_WHY_NOT[name]}")
        check_dataset(dataset)
        if isinstance(collate_fn, Padded | Nested) and not (isinstance(dataset, DocumentDataset) and dataset.outputs):
            raise ValueError(f"{collate_fn!r} collates numeric documents, which these are not")
        partition = Partition(batch_size, *rank_and_world_size(rank, world_size), drop_last)
        pinned = pin_memory and torch.accelerator.is_available()
        self._engine: Engine[Any] = Engine(
            _with_torch_dtypes(dataset),
            partition,
            shuffle=shuffle,
            seed=seed,
            prefetch=prefetch,
            max_bytes_in_flight=max_bytes_in_flight,
            deliver=_Deliver(collate_fn, device, pads=partition.pads, pinned=pinned),
            allocate=allocate_pinned if pinned else np.empty,
        )
        collate = None if isinstance(collate_fn, Padded | Nested) else collate_fn
        super().__init__(_Marker(dataset), batch_size=batch_size, drop_last=drop_last, collate_fn=collate)
        self.pin_memory = pin_memory

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return self._engine.num_steps

    def __iter__(self) -> EpochIterator[Any]:  # type: ignore[override]  # not torch's own iterator class
        """Begin an epoch, or continue one where a loaded state says."""
        return self._engine.iterate()

    def __repr__(self) -> str:
        return f"StatefulDataLoader({self._engine.describe()}"

    def state_dict(self) -> dict[str, Any]:
        """Return the position; see `guideloom.Loader.state_dict`."""
        return self._engine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; see `guideloom.Loader.load_state_dict`."""
        self._engine.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Make an epoch the next one; see `guideloom.Loader.set_epoch`."""
        self._engine.set_epoch(epoch)

    def sample_ids(self, step: int, epoch: int | None = None) -> Int64Array:
        """Return which samples this rank's batch at some step holds; see `guideloom.Loader.sample_ids`."""
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


class _Deliver:
    """Turns arrays into tensors, collates them and brings them to the device. Holds nothing of the loader."""

    def __init__(
        self,
        collate: Collate | Padded | Nested | None,
        device: torch.device | str | None,
        *,
        pads: bool,
        pinned: bool,
    ) -> None:
        self._collate = collate
        self._device = None if device is None else torch.device(device)
        self._pads = pads
        self._pinned = pinned
        self._allocate: Allocate = allocate_pinned if pinned else np.empty

    def __call__(self, batch: Any) -> Any:
        result = self._result(batch)
        return result if self._device is None else self._move(result)

    def _result(self, batch: Any) -> Any:
        if isinstance(batch, list):
            return batch if self._collate is None else self._by_sample(batch)
        fields = dict(batch)
        num_valid = fields.pop(NUM_VALID) if self._pads else None
        if isinstance(next(iter(fields.values())), Jagged):
            result = self._documents(fields, num_valid)
        else:
            tensors = {name: as_tensors(item) for name, item in fields.items()}
            if self._collate is not None:
                rows = len(next(iter(tensors.values()))) if num_valid is None else int(num_valid)
                return self._by_sample([{name: row_of(item, i) for name, item in tensors.items()} for i in range(rows)])
            result = tensors
        if num_valid is not None:
            result[NUM_VALID] = as_tensor(num_valid)
        return result

    def _by_sample(self, samples: list[Any]) -> Any:
        assert callable(self._collate)
        return self._collate(samples)

    def _documents(self, fields: dict[str, Jagged], num_valid: Any) -> Any:
        collate = Padded() if self._collate is None else self._collate
        if isinstance(collate, Padded | Nested):
            return collate.collate(fields, self._allocate)
        rows = {name: field.rows() for name, field in fields.items()}
        count = len(next(iter(rows.values()))) if num_valid is None else int(num_valid)
        return self._by_sample([{name: as_tensor(rows[name][i]) for name in rows} for i in range(count)])

    def _move(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor | TensorSpans):
            return item.to(self._device, non_blocking=self._pinned)
        if isinstance(item, dict):
            return {name: self._move(part) for name, part in item.items()}
        if isinstance(item, list | tuple):
            parts = map(self._move, item)
            return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)  # a named tuple takes each
        return item


def _with_torch_dtypes(dataset: StreamDataset | DocumentDataset) -> StreamDataset | DocumentDataset:
    """Return the dataset with unsigned integers as int64, where the caller did not choose."""

    def delivered(output: Output) -> np.dtype[Any]:
        wide_unsigned = output.dtype.kind == "u" and output.dtype.itemsize > 1
        return np.dtype(np.int64) if wide_unsigned and not dataset.requested_dtype(output) else output.dtype

    if not dataset.outputs:
        return dataset
    return dataset.with_fields({output.name: delivered(output) for output in dataset.outputs})
