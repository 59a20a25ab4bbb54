"""Samples and batches by index: awaited, or through the bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Generic, NoReturn, Self, SupportsIndex, TypeVar

import numpy as np

from guideloom.bridge import Bridge, Handover
from guideloom.datasets.indexing import Indices, as_index, as_indices
from guideloom.datasets.samples import Allocate, BatchT, Dataset, SampleT, SliceReader
from guideloom.errors import ClosedError
from guideloom.sampling.order import Order, Shuffle
from guideloom.sampling.partition import Partition
from guideloom.sampling.plan import EpochPlan
from guideloom.scheduler.lookahead import MOST_BYTES_IN_FLIGHT, Budget, Lookahead

T = TypeVar("T")


class AsyncReader(Generic[SampleT, BatchT]):
    """Reads a dataset from inside an event loop.

    Made by the dataset's ``async_reader``. Use it with ``async with``; any number of reads may run at a time.
    """

    def __init__(self, dataset: Dataset[SampleT, BatchT]) -> None:
        self.dataset = dataset
        self._reader: SliceReader[SampleT, BatchT] | None = None

    def __repr__(self) -> str:
        state = "open" if self._reader else "closed"
        return f"AsyncReader({state}) over {self.dataset!r}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an async reader belongs to its process and loop; pickle its dataset, which makes another")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset)

    async def open(self) -> None:
        """Open the dataset's backend; ``async with`` does it."""
        if self._reader is None:
            await self.dataset.backend.open()
            self._reader = self.dataset.slice_reader()

    async def close(self) -> None:
        """Close the dataset's backend; ``async with`` does it."""
        if self._reader is not None:
            self._reader = None
            await self.dataset.backend.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def read(self, index: SupportsIndex) -> SampleT:
        """Return one sample.

        Parameters
        ----------
        index : int
            Negative ones count from the end.

        Returns
        -------
        dict of str to array of shape (window, ...)
            One array a field, writable, owning its memory.

        Raises
        ------
        IndexError, TypeError
            If there is no such sample, or `index` is not an integer.
        BackendError, CorruptionError
            If it cannot be read, or is damaged; naming the file, offset and sample.
        """
        return await self._open_reader().read_one(as_index(index, len(self)))

    async def read_batch(self, indices: Indices) -> BatchT:
        """Return several samples as one batch.

        Parameters
        ----------
        indices : sequence or array of int, or slice
            In any order, repeats included; negative ones count from the end.

        Returns
        -------
        dict of str to array of shape (n, window, ...)
            One C-contiguous array a field, writable, owning its memory.

        Raises
        ------
        As `read`.
        """
        samples = as_indices(indices, len(self))
        (result,) = await self._open_reader().read(samples, [len(samples)], [len(samples)])
        return _or_raise(result)

    async def batches(
        self,
        batch_size: int,
        *,
        shuffle: Shuffle = None,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        prefetch: int | None = None,
        max_bytes_in_flight: int = MOST_BYTES_IN_FLIGHT,
    ) -> AsyncIterator[BatchT]:
        """Yield the batches of one epoch, reading ahead.

        Parameters
        ----------
        batch_size : int
            Samples a batch.
        shuffle : bool, "global" or None, default None
            ``True`` or ``"global"`` for a seeded permutation of all samples.
        seed, epoch : int, default 0
            Choose the permutation.
        rank, world_size : int, default 0 and 1
            Which part of each global step is read.
        drop_last : bool, default False
            Whether to leave out the samples after the last full step. Without it, and with several ranks, the rows of
            the last batch may be padded with zeros, and every batch has an item ``num_valid``, an int64 array of
            shape ().
        prefetch : int or None
            Batches to read ahead; ``None`` for 48 MiB of them, but 4 to 128.
        max_bytes_in_flight : int, default 268,435,456
            Bytes of all batches that are read ahead; one batch is always allowed.

        Yields
        ------
        dict of str to array of shape (batch_size, window, ...)

        Raises
        ------
        ValueError
            If an argument is out of range.
        BackendError, CorruptionError
            In place of a batch that cannot be read; those before it have been delivered.
        """
        partition = Partition(batch_size, rank, world_size, drop_last)
        plan = EpochPlan(Order(len(self), shuffle, seed), partition, epoch)
        lookahead = self.look_ahead(plan, prefetch, max_bytes_in_flight)
        try:
            while results := (await lookahead.next_slice()).results:
                results.reverse()
                while results:
                    yield _or_raise(results.pop())
        finally:
            await lookahead.close()

    def look_ahead(
        self, plan: EpochPlan, prefetch: int | None, max_bytes_in_flight: int, allocate: Allocate = np.empty
    ) -> Lookahead[BatchT | Exception]:
        """Return the batches of a plan in slices, read ahead: what `batches` and the loaders are made of.

        Parameters
        ----------
        plan : EpochPlan
            What to read.
        prefetch : int or None
            Batches to read ahead.
        max_bytes_in_flight : int
            Bytes of all of them.
        allocate : callable
            Takes a shape and a dtype and returns the array to read into.
        """
        reader = self._open_reader()

        async def read(first: int, count: int) -> list[BatchT | Exception]:
            samples, valid, total = plan.samples(first, count)
            results = await reader.read(samples, valid, total, allocate)
            if plan.partition.pads:
                for result, rows in zip(results, valid, strict=True):
                    if not isinstance(result, Exception):
                        reader.mark_valid(result, rows)
            return results

        if plan.partition.pads:
            reader.check_padding()
        batch_bytes = plan.partition.batch_size * reader.sample_bytes
        return Lookahead(
            read, plan.num_steps, Budget.of(prefetch, batch_bytes=batch_bytes, max_bytes=max_bytes_in_flight)
        )

    def samples_of(self, batch: BatchT) -> Iterator[SampleT]:
        """Yield the samples of a batch, each owning its memory."""
        return self._open_reader().samples_of(batch)

    def _open_reader(self) -> SliceReader[SampleT, BatchT]:
        if self._reader is None:
            raise ClosedError("this reader is not open; use `async with dataset.async_reader() as reader`")
        return self._reader


class SyncReader(Generic[SampleT, BatchT]):
    """Reads a dataset from code without an event loop; usable inside a running one too, which it blocks.

    Made by the dataset's ``sync_reader``. Use it with ``with``; it may be shared by threads, and opens itself anew in a
    forked child.
    """

    def __init__(self, dataset: Dataset[SampleT, BatchT]) -> None:
        self.dataset = dataset
        self._opened: tuple[Bridge, AsyncReader[SampleT, BatchT]] | None = None

    def __repr__(self) -> str:
        state = "open" if self._opened else "closed"
        return f"SyncReader({state}) over {self.dataset!r}"

    def __getstate__(self) -> tuple[Dataset[SampleT, BatchT], bool]:
        return self.dataset, self._opened is not None

    def __setstate__(self, state: tuple[Dataset[SampleT, BatchT], bool]) -> None:
        self.dataset, was_open = state
        self._opened = open_reader(self.dataset) if was_open else None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset)

    def open(self) -> None:
        """Start the bridge and open the dataset's backend; ``with`` does it."""
        if self._opened is None:
            self._opened = open_reader(self.dataset)

    def close(self) -> None:
        """End the bridge; ``with`` does it."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, index: SupportsIndex | slice) -> SampleT | BatchT:
        """Return a sample, or for a slice the batch of its samples. See `AsyncReader.read` and `read_batch`."""
        if isinstance(index, slice):
            return self.read_batch(index)
        return self.read(index)

    def __iter__(self) -> Iterator[SampleT]:
        """Yield every sample in order, reading ahead."""
        _, reader = self._bridge_and_reader()
        for batch in self.batches(32):
            yield from reader.samples_of(batch)

    def read(self, index: SupportsIndex) -> SampleT:
        """Return one sample. See `AsyncReader.read`."""
        bridge, reader = self._bridge_and_reader()
        return bridge.run(reader.read, index)

    def read_batch(self, indices: Indices) -> BatchT:
        """Return several samples as one batch. See `AsyncReader.read_batch`."""
        bridge, reader = self._bridge_and_reader()
        return bridge.run(reader.read_batch, indices)

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: Shuffle = None,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        prefetch: int | None = None,
        max_bytes_in_flight: int = MOST_BYTES_IN_FLIGHT,
    ) -> Iterator[BatchT]:
        """Yield the batches of one epoch, reading ahead. See `AsyncReader.batches`."""
        partition = Partition(batch_size, rank, world_size, drop_last)
        plan = EpochPlan(Order(len(self), shuffle, seed), partition, epoch)
        bridge, reader = self._bridge_and_reader()
        lookahead = reader.look_ahead(plan, prefetch, max_bytes_in_flight)
        handover = Handover(bridge, lookahead.next_slice, lookahead.close)
        taken = None
        try:
            while results := (taken := handover.take(taken)).results:
                results.reverse()
                while results:
                    yield _or_raise(results.pop())
        finally:
            handover.close()

    def _bridge_and_reader(self) -> tuple[Bridge, AsyncReader[SampleT, BatchT]]:
        if self._opened is None:
            raise ClosedError("this reader is not open; use `with dataset.sync_reader() as reader`")
        if not self._opened[0].usable:  # in a forked child, whose parent opened it
            self._opened = open_reader(self.dataset)
        return self._opened


def open_reader(dataset: Dataset[SampleT, BatchT]) -> tuple[Bridge, AsyncReader[SampleT, BatchT]]:
    """Return a reader that is open in a loop of its own, and closed when that loop's bridge ends."""
    reader = AsyncReader(dataset)
    bridge = Bridge(at_end=reader.close)
    bridge.run(reader.open)
    return bridge, reader


def _or_raise(result: T | Exception) -> T:
    if isinstance(result, Exception):
        raise result
    return result
