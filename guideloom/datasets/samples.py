"""What a dataset and its reader are, whatever their samples: the ground of readers and loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from guideloom._typing import AnyArray, Int64Array
from guideloom.backends.base import ReadBackend
from guideloom.errors import GuideLoomError
from guideloom.storage.manifest import Manifest

# Of each field an array, and of each annotation layer its Spans.
Sample: TypeAlias = dict[str, Any]
Batch: TypeAlias = dict[str, Any]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], AnyArray]

SampleT = TypeVar("SampleT")
BatchT = TypeVar("BatchT")
SampleT_co = TypeVar("SampleT_co", covariant=True)

# The item of a batch that says how many of its rows are samples, where the last one may be padded.
NUM_VALID = "num_valid"


class SliceReader(Protocol[SampleT_co, BatchT]):
    """Reads whole slices of batches from an open backend."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one delivered sample, or of a mean one."""

    async def read(
        self, samples: Int64Array, valid: Sequence[int], total: Sequence[int], allocate: Allocate = ...
    ) -> list[BatchT | Exception]:
        """Read some batches.

        Parameters
        ----------
        samples : int64 array of shape (sum of `valid`,)
            Batch after batch.
        valid, total : sequence of int
            Rows of each batch that hold samples, and rows it has; the others are filled up.
        allocate : callable
            Takes a shape and a dtype and returns an array to deliver.

        Returns
        -------
        list of batch or Exception
            One that could not be read is the error instead; it costs no other batch.
        """

    async def read_one(self, sample: int) -> SampleT_co:
        """Read one sample, or raise what its error is."""

    def samples_of(self, batch: BatchT) -> Iterator[SampleT_co]:
        """Yield the samples of a batch, each owning its memory."""

    def check_padding(self) -> None:
        """Raise ``ValueError`` if a batch could not say how many of its rows are samples."""

    def mark_valid(self, batch: BatchT, rows: int) -> None:
        """Say in a batch how many of its rows are samples."""


class Dataset(Protocol[SampleT_co, BatchT]):
    """Samples by number: what readers and loaders read."""

    @property
    def backend(self) -> ReadBackend:
        """Where the dataset lies."""

    @property
    def manifest(self) -> Manifest:
        """What it holds."""

    @property
    def location(self) -> str:
        """How to call it in messages."""

    @property
    def fingerprint(self) -> str:
        """Hash of content and meaning; the same for the same data, however they were written."""

    @property
    def geometry(self) -> tuple[int, int, int]:
        """Window, stride and offset of samples that are windows; else zeros."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def slice_reader(self) -> SliceReader[SampleT_co, BatchT]:
        """Return a reader of whole slices of batches; the backend must be open."""

    def why_empty(self) -> str:
        """Say why there is no sample."""


def for_sample(error: Exception, sample: int, location: str) -> Exception:
    """Return an error that names the sample that could not be delivered, and its dataset."""
    if isinstance(error, GuideLoomError):
        return error.for_sample(sample, location)
    error.add_note(f"for sample {sample} of {location}")
    return error
