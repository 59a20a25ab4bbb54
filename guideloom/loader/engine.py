"""What every loader is: a cursor over epochs, and an iterator that reads ahead of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from guideloom._typing import Int64Array, as_int
from guideloom.bridge import Bridge, Handover
from guideloom.datasets.documents import DocumentDataset
from guideloom.datasets.readers import AsyncReader, open_reader
from guideloom.datasets.samples import Allocate, Dataset
from guideloom.datasets.stream import StreamDataset
from guideloom.errors import ClosedError
from guideloom.loader.state import (
    STATE_FORMAT,
    STATE_VERSION,
    DatasetState,
    LoaderState,
    OrderState,
    Segment,
    check_state,
    decode_state,
    encode_state,
    probe,
    segments_to,
)
from guideloom.sampling.order import Order, Shuffle
from guideloom.sampling.partition import Partition
from guideloom.sampling.permutation import SHUFFLE_VERSION
from guideloom.sampling.plan import EpochPlan
from guideloom.scheduler.lookahead import Budget, Slice

T = TypeVar("T")

logger = logging.getLogger("guideloom")


def check_dataset(dataset: object) -> None:
    """Raise ``TypeError`` unless a loader can read a dataset."""
    if not isinstance(dataset, StreamDataset | DocumentDataset):
        raise TypeError(
            f"dataset must be what guideloom.open_dataset returns, not {type(dataset).__name__}; for other datasets "
            "use torch's own DataLoader"
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next batch that the consumer has not received.

    Parameters
    ----------
    epoch : int
        Its epoch.
    step : int
        Batches received in the epoch before it.
    position : int
        Samples that all ranks together have received in the epoch.
    """

    epoch: int
    step: int
    position: int


class Engine(Generic[T]):
    """Order, partition, position and state of a loader; `Loader` and `StatefulDataLoader` are its faces.

    Parameters
    ----------
    dataset : Dataset
        What to read.
    partition : Partition
        Which part of each step this rank reads.
    shuffle, seed
        As `Order` takes them.
    prefetch, max_bytes_in_flight
        As `AsyncReader.batches` takes them.
    deliver : callable
        Turns a batch of arrays into what the user gets, on the consumer's thread.
    allocate : callable
        Makes the arrays that are read into.
    """

    def __init__(
        self,
        dataset: Dataset[Any, Any],
        partition: Partition,
        *,
        shuffle: Shuffle,
        seed: int,
        prefetch: int | None,
        max_bytes_in_flight: int,
        deliver: Callable[[Any], T],
        allocate: Allocate = np.empty,
    ) -> None:
        self.dataset = dataset
        self.partition = partition
        self.order = Order(len(dataset), shuffle, seed)
        self._ahead = prefetch, max_bytes_in_flight
        Budget.of(prefetch, batch_bytes=1, max_bytes=max_bytes_in_flight)  # so that it is refused here
        self._deliver = deliver
        self._allocate = allocate
        self._cursor = Cursor(0, 0, 0)
        self._segments = [Segment(0, 0, 0, partition.world_size, partition.batch_size)]
        self._iterator: EpochIterator[T] | None = None
        self._opened: tuple[Bridge, AsyncReader[Any, Any]] | None = None
        self._closed = False
        if not self.num_steps:
            logger.warning("this loader gives no batches: %s", self._why_no_batches())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": self.cursor, "_iterator": None, "_opened": None}

    @property
    def cursor(self) -> Cursor:
        """The next batch that the consumer has not received."""
        return self._cursor if self._iterator is None else self._iterator.cursor

    @property
    def num_steps(self) -> int:
        """Batches of a whole epoch."""
        return self.partition.num_steps(self.order.length)

    def iterate(self) -> EpochIterator[T]:
        """Begin an epoch, or continue one where a state says; an iterator made before ends."""
        if self._closed:
            raise ClosedError("this loader is closed")
        cursor = self.cursor
        if self._iterator is not None:
            self._iterator.close()
            if self._iterator.in_the_middle:
                cursor = Cursor(cursor.epoch + 1, 0, 0)
        self._cursor, self._iterator = cursor, None
        plan = EpochPlan(self.order, self.partition, cursor.epoch, cursor.position)
        if self._opened is None or not self._opened[0].usable:  # the first time, or in a forked child
            self._opened = open_reader(self.dataset)
        bridge, reader = self._opened
        lookahead = reader.look_ahead(plan, *self._ahead, self._allocate)
        handover = Handover(bridge, lookahead.next_slice, lookahead.close)
        self._iterator = EpochIterator(plan, cursor.step, handover, self._deliver)
        return self._iterator

    def set_epoch(self, epoch: int) -> None:
        """Make an epoch the next one. The current one may be named, to no effect.

        Raises
        ------
        ValueError
            If a state of the middle of another epoch was loaded and has not been continued.
        """
        epoch = as_int(epoch, "epoch")
        if not 0 <= epoch < 2**64:
            raise ValueError(f"epoch must be in 0 .. 2**64 - 1, not {epoch}")
        cursor = self.cursor
        if epoch == cursor.epoch:
            return
        if cursor.step and not (self._iterator and self._iterator.in_the_middle):
            raise ValueError(
                f"the loaded state is at step {cursor.step} of epoch {cursor.epoch}; set_epoch({epoch}) would skip the "
                "rest of that epoch. Iterate first, or load the state of another epoch"
            )
        self._move_to(Cursor(epoch, 0, 0), self._segments)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain JSON types."""
        cursor = self.cursor
        order = self.order
        state = LoaderState(
            format=STATE_FORMAT,
            version=STATE_VERSION,
            dataset=self._dataset_state(),
            order=OrderState(order.mode, SHUFFLE_VERSION, str(order.seed), probe(order, cursor.epoch, cursor.position)),
            epoch=cursor.epoch,
            step=cursor.step,
            position=cursor.position,
            segments=self._segments,
        )
        return encode_state(state)

    def load_state_dict(self, plain: Any) -> None:
        """Continue from a state; check all of it before changing anything."""
        state = decode_state(plain)
        check_state(state, self._dataset_state(), self.order)
        cursor = Cursor(state.epoch, state.step, state.position)
        partition = self.partition
        remaining = self.order.length - cursor.position
        if cursor.position and not partition.num_steps(remaining):
            logger.warning(
                "the state leaves %d samples of epoch %d, less than a step of %d: drop_last drops them",
                remaining, cursor.epoch, partition.step_size,
            )  # fmt: skip
            cursor = Cursor(cursor.epoch + 1, 0, 0)
        self._move_to(cursor, state.segments)

    def sample_ids(self, step: int, epoch: int | None) -> Int64Array:
        """Return the samples of this rank's batch at a step; see `Loader.sample_ids`."""
        epoch = self.cursor.epoch if epoch is None else epoch
        segment = next((s for s in reversed(self._segments) if (s.epoch, s.step) <= (epoch, step)), self._segments[0])
        partition = self.partition
        if (segment.world_size, segment.batch_size) != (partition.world_size, partition.batch_size):
            if partition.rank >= segment.world_size:
                raise IndexError(f"step {step} of epoch {epoch} was read by {segment.world_size} ranks only")
            partition = Partition(segment.batch_size, partition.rank, segment.world_size, partition.drop_last)
        first, start = (segment.step, segment.position) if segment.epoch == epoch else (0, 0)
        plan = EpochPlan(self.order, partition, epoch, start)
        if not first <= step < first + plan.num_steps:
            raise IndexError(f"epoch {epoch} has steps {first} to {first + plan.num_steps - 1}, not {step}")
        return plan.samples(step - first, 1)[0]

    def describe(self) -> str:
        """Return what the loaders' reprs say."""
        cursor, partition, order = self.cursor, self.partition, self.order
        shuffle = f"shuffle={order.mode!r}, seed={order.seed}" if order.mode else "in order"
        drop_last = ", drop_last" if partition.drop_last else ""
        dataset = repr(self.dataset).replace("\n", "\n  ")
        return (
            f"batch_size={partition.batch_size}, {shuffle}{drop_last})\n"
            f"  rank {partition.rank} of {partition.world_size}, epoch {cursor.epoch}, "
            f"batch {cursor.step:,} of {self.num_steps:,}{', closed' if self._closed else ''}\n"
            f"  {dataset}"
        )

    def close(self) -> None:
        """End the iterator, the loop and its thread. May be called again."""
        self._closed = True
        self._cursor, iterator, self._iterator = self.cursor, self._iterator, None
        if iterator is not None:
            iterator.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def _move_to(self, cursor: Cursor, segments: Sequence[Segment]) -> None:
        if self._iterator is not None:
            self._iterator.close()
        world_size, batch_size = self.partition.world_size, self.partition.batch_size
        self._segments = segments_to(
            segments, cursor.epoch, cursor.step, cursor.position, world_size=world_size, batch_size=batch_size
        )
        self._cursor, self._iterator = cursor, None

    def _why_no_batches(self) -> str:
        if self.order.length:
            return (
                f"the dataset has {self.order.length:,} samples, less than a step of {self.partition.step_size:,} "
                "(batch_size times world_size), and drop_last drops them"
            )
        return self.dataset.why_empty()

    def _dataset_state(self) -> DatasetState:
        dataset = self.dataset
        window, stride, offset = dataset.geometry
        return DatasetState(
            kind=dataset.manifest.kind,
            fingerprint=dataset.fingerprint,
            snapshot=dataset.manifest.snapshot,
            samples=len(dataset),
            window=window,
            stride=stride,
            offset=offset,
        )


class EpochIterator(Iterator[T]):
    """The batches of one epoch, or of its rest.

    All that changes as a batch is handed out is one step count, so an interrupt at any moment leaves the position
    right.
    """

    def __init__(
        self,
        plan: EpochPlan,
        first_step: int,
        handover: Handover[Slice[Any]],
        deliver: Callable[[Any], T],
    ) -> None:
        self._plan = plan
        self._num_steps = plan.num_steps
        self._first_step = first_step
        self._handover = handover
        self._deliver = deliver
        self._done = 0  # steps delivered
        self._slice: Slice[Any] = Slice(0, [])  # of batches and errors; of None once delivered
        self._closed = False
        self._lock = threading.Lock()

    @property
    def cursor(self) -> Cursor:
        """The next batch that was not delivered; of the next epoch once the last one of this was."""
        done = self._done
        if done and done >= self._num_steps:
            return Cursor(self._plan.epoch + 1, 0, 0)
        return Cursor(self._plan.epoch, self._first_step + done, self._plan.position(done))

    @property
    def in_the_middle(self) -> bool:
        """Whether some batches were delivered, but not all."""
        return 0 < self._done < self._num_steps

    def __iter__(self) -> EpochIterator[T]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an iterator over a loader cannot be pickled; pickle the loader, or its dataset and state_dict()"
        )

    def __len__(self) -> int:
        """Return the number of batches that are left."""
        return self._num_steps - self._done

    def __next__(self) -> T:
        if self._done >= self._num_steps:
            raise StopIteration
        self._handover.check_process()  # before the lock, which a forked child may have inherited locked
        counted = False
        try:
            with self._lock:
                done = self._done
                result = self._result(done)
                batch = self._deliver(result)
                results, at = self._slice.results, done - self._slice.first_step
                counted, results[at], self._done = True, None, done + 1
            return batch
        except BaseException:
            if counted:  # an interrupt came in between, and the caller never had the batch
                results[at], self._done = result, done
            raise

    def _result(self, done: int) -> Any:
        if done >= self._num_steps:
            raise StopIteration
        if self._closed:
            raise ClosedError("this iterator has ended: its loader was closed, moved, or iterated again")
        if done - self._slice.first_step == len(self._slice.results):
            self._slice = self._handover.take(self._slice)
        result = self._slice.results[done - self._slice.first_step]
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Stop reading ahead."""
        self._closed = True
        self._handover.close()

    def __del__(self) -> None:
        if "_handover" in self.__dict__:  # unless an interrupt came first
            self.close()
