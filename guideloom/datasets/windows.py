"""Read windows of a stream: many batches in one go, bytes straight into their arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from guideloom._speedups.planning import count_pieces, plan_windows
from guideloom._speedups.reading import Buffers, ReadJob
from guideloom._typing import Int64Array
from guideloom.backends.base import ReadBackend
from guideloom.datasets.grid import WindowGrid
from guideloom.datasets.jobs import JobRunner
from guideloom.datasets.layer_files import LayerFiles
from guideloom.datasets.layers import LayerReader
from guideloom.datasets.pieces import CheckedFiles, PieceReader
from guideloom.datasets.samples import NUM_VALID, Allocate, Batch, Sample, for_sample
from guideloom.datasets.selection import Output
from guideloom.datasets.spans import Spans
from guideloom.errors import ConversionError, GuideLoomError


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """The files of one column group, an entry a shard, and what is read of them.

    Parameters
    ----------
    files : CheckedFiles
        The files.
    byte_offsets : int64 array of shape (num_shards,)
        Where the rows begin in each.
    row_bytes : int
        Bytes of a stored row.
    outputs : sequence of (Output, int)
        The fields to deliver, each with its offset in a row.
    """

    files: CheckedFiles
    byte_offsets: Int64Array
    row_bytes: int
    outputs: Sequence[tuple[Output, int]]


class WindowReader:
    """Reads the windows of a grid from an open backend.

    Parameters
    ----------
    backend : ReadBackend
        Open; it stays open until the last read has ended.
    grid : WindowGrid
        Where the windows lie.
    groups : sequence of GroupFiles
        The column groups that hold the fields to deliver.
    outputs : sequence of Output
        These fields, in the order that the caller named them.
    layers : sequence of LayerFiles
        The annotation layers to deliver with them.
    verify : bool
        Whether every block is compared with its checksum before any of it is delivered.
    location : str
        How to call the dataset in messages.
    """

    def __init__(
        self,
        backend: ReadBackend,
        grid: WindowGrid,
        groups: Sequence[GroupFiles],
        outputs: Sequence[Output],
        layers: Sequence[LayerFiles],
        *,
        verify: bool,
        location: str,
    ) -> None:
        self._location = location
        self.grid = grid
        self._jobs = JobRunner(backend)
        self._groups = groups
        self._readers = [PieceReader(backend, self._jobs, group.files, verify=verify) for group in groups]
        self._layers = [LayerReader(backend, self._jobs, grid, layer, verify=verify) for layer in layers]
        self._arrays = [(output.name, (grid.window, *output.field.shape), output.dtype) for output in outputs]

    @property
    def sample_bytes(self) -> int:
        """Bytes of one delivered sample, on average."""
        row_bytes = sum(output.num_bytes for group in self._groups for output, _ in group.outputs)
        return self.grid.window * row_bytes + sum(layer.window_bytes for layer in self._layers)

    async def read(
        self, samples: Int64Array, valid: Sequence[int], total: Sequence[int], allocate: Allocate = np.empty
    ) -> list[Batch | Exception]:
        """Read some batches.

        Parameters
        ----------
        samples : int64 array of shape (sum of `valid`,)
            Windows, batch after batch.
        valid, total : sequence of int
            Rows of each batch that hold samples, and rows it has; the others are zero.
        allocate : callable
            Takes a shape and a dtype and returns the array to deliver.

        Returns
        -------
        list of dict of str to array or Spans, or Exception
            A batch maps each field to an array of shape ``(total, window, ...)``, and each layer to the spans of its
            windows. One that could not be read is the error instead; it costs no other batch.
        """
        batches: list[Batch] = [
            {name: allocate((rows, *shape), dtype) for name, shape, dtype in self._arrays} for rows in total
        ]
        for batch, used, rows in zip(batches, valid, total, strict=True):
            if used < rows:
                for array in batch.values():
                    array[used:] = 0
        bounds = np.zeros(len(total) + 1, np.int64)
        np.cumsum(valid, out=bounds[1:])
        results: list[Batch | Exception] = list(batches)
        parts = [
            self._read_group(group, reader, samples, bounds, batches)
            for group, reader in zip(self._groups, self._readers, strict=True)
        ] + [self._read_layer(layer, samples, valid, total, batches) for layer in self._layers]
        try:
            outcomes = await _all_of(parts)
        except GuideLoomError as error:
            return [error] * len(batches)
        for failures in outcomes:
            for row, reason in failures.items():
                batch_number = int(np.searchsorted(bounds, row, "right")) - 1
                if not isinstance(results[batch_number], Exception):
                    results[batch_number] = for_sample(reason, int(samples[row]), self._location)
        return results

    async def read_one(self, sample: int) -> Sample:
        """Read one window, or raise what its error is."""
        (result,) = await self.read(
            np.array([sample], np.int64), [1], [1], allocate=lambda shape, dtype: np.empty(shape[1:], dtype)
        )
        if isinstance(result, Exception):
            raise result
        return result

    def samples_of(self, batch: Batch) -> Iterator[Sample]:
        """Yield the windows of a batch, each owning its memory."""
        for i in range(len(next(iter(batch.values())))):
            yield {name: _row(item, i) for name, item in batch.items()}

    def check_padding(self) -> None:
        """Raise ``ValueError`` if a batch could not say how many of its rows are windows."""
        if NUM_VALID in [*(name for name, _, _ in self._arrays), *(layer.name for layer in self._layers)]:
            raise ValueError(f"the name {NUM_VALID!r} clashes with what padded batches carry; use drop_last=True")

    def mark_valid(self, batch: Batch, rows: int) -> None:
        """Say in a batch how many of its rows are windows."""
        batch[NUM_VALID] = np.array(rows)

    async def _read_layer(
        self,
        layer: LayerReader,
        samples: Int64Array,
        valid: Sequence[int],
        total: Sequence[int],
        batches: list[Batch],
    ) -> dict[int, Exception]:
        """Read the spans of one layer; return the errors by row of `samples`."""
        spans, errors = await layer.read(samples, valid, total)
        for batch, found in zip(batches, spans, strict=True):
            batch[layer.name] = found
        return errors

    async def _read_group(
        self,
        group: GroupFiles,
        reader: PieceReader,
        samples: Int64Array,
        bounds: Int64Array,
        batches: list[Batch],
    ) -> dict[int, Exception]:
        """Read the fields of one group; return the errors by row of `samples`."""
        grid = self.grid
        count = count_pieces(samples, grid.window, grid.stride, grid.offset, grid.starts)
        row, file, batch, status = (np.empty(count, np.int32) for _ in range(4))
        offset, length, element = (np.empty(count, np.int64) for _ in range(3))
        plan_windows(
            samples, bounds, grid.window, grid.stride, grid.offset, grid.starts, group.row_bytes, group.byte_offsets,
            row, file, offset, length, batch, element,
        )  # fmt: skip
        arrays = [batch[output.name] for output, _ in group.outputs for batch in batches]
        buffers = Buffers(arrays)
        base, sizes = np.empty((len(group.outputs), len(batches)), np.int64), np.empty(len(arrays), np.int64)
        buffers.fill(base.reshape(-1), sizes)
        job = ReadJob(
            file=file, offset=offset, length=length, batch=batch, element=element, base=base, status=status,
            detail=np.zeros((count, 2), np.int64), row_bytes=group.row_bytes, keep=buffers,
            fields=[output.code(field_offset) for output, field_offset in group.outputs],
        )  # fmt: skip
        errors = await reader.run(
            job, arrays, file, offset, length, lambda i: _misfit(job, group, i, int(file[i]), int(offset[i]))
        )
        by_row: dict[int, Exception] = {}
        for i, error in errors.items():
            by_row.setdefault(int(row[i]), error)
        return by_row


async def _all_of(parts: Sequence[Coroutine[Any, Any, dict[int, Exception]]]) -> list[dict[int, Exception]]:
    """Run them at a time, and let none run on if one fails."""
    if len(parts) == 1:  # most often, and then without a task
        return [await parts[0]]
    outcomes = await asyncio.gather(*parts, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return cast(list[dict[int, Exception]], outcomes)


def _row(item: Any, number: int) -> Any:
    return item.row(number) if isinstance(item, Spans) else item[number].copy()


def _misfit(job: ReadJob, group: GroupFiles, piece: int, file: int, offset: int) -> ConversionError:
    """Make the error for a piece with a value that does not fit the dtype asked for."""
    number, element = job.detail[piece].tolist()
    output, path = group.outputs[number][0], group.files.paths[file]
    at = offset + element // output.num_elements * group.row_bytes
    return ConversionError(
        f"field {output.name!r} holds a value at byte {at} of {path} that does not fit {output.dtype}; it is "
        f"stored as {output.field.dtype}; ask for a dtype that holds all of its values",
        field=output.name,
        path=path,
        offset=at,
    )
