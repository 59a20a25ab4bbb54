"""Read windows of a stream: many batches in one go, bytes straight into their arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from guideloom._speedups.planning import count_pieces, plan_windows
from guideloom._speedups.reading import CORRUPT, OVERFLOW, SHORT, Buffers, ReadJob
from guideloom._typing import Int64Array, UInt32Array
from guideloom.backends.base import ReadBackend, errno_error, short_read
from guideloom.datasets.jobs import JobRunner
from guideloom.datasets.samples import NUM_VALID, Allocate, Batch, Sample, for_sample
from guideloom.datasets.selection import Output
from guideloom.errors import ConversionError, CorruptionError, GuideLoomError
from guideloom.storage.checksum_tables import ChecksumTables
from guideloom.storage.checksums import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Windows over the concatenation of shards.

    Parameters
    ----------
    window, stride, offset : int
        Elements of a window, from one window to the next, and before the first.
    starts : int64 array of shape (num_shards + 1,)
        First element of each shard, and their total.
    """

    window: int
    stride: int
    offset: int
    starts: Int64Array

    def __len__(self) -> int:
        """Return the number of whole windows."""
        room = int(self.starts[-1]) - self.offset - self.window
        return room // self.stride + 1 if room >= 0 else 0


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """The files of one column group, an entry a shard, and what is read of them.

    Parameters
    ----------
    paths, side_paths : sequence of str
        Data files and their checksum files, relative to the backend's root.
    byte_offsets, file_bytes : int64 array of shape (num_shards,)
        Where the rows begin, and the size of the file.
    seeds : uint32 array of shape (num_shards,)
        Checksum seeds.
    row_bytes : int
        Bytes of a stored row.
    outputs : sequence of (Output, int)
        The fields to deliver, each with its offset in a row.
    """

    paths: Sequence[str]
    side_paths: Sequence[str]
    byte_offsets: Int64Array
    file_bytes: Int64Array
    seeds: UInt32Array
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
        *,
        verify: bool,
        location: str,
    ) -> None:
        self._location = location
        self.grid = grid
        self._jobs = JobRunner(backend)
        self._groups = groups
        self._tables = [
            ChecksumTables(backend, group.side_paths, group.seeds, group.file_bytes) if verify else None
            for group in groups
        ]
        self._arrays = [(output.name, (grid.window, *output.field.shape), output.dtype) for output in outputs]

    @property
    def sample_bytes(self) -> int:
        """Bytes of one delivered sample."""
        return self.grid.window * sum(output.num_bytes for group in self._groups for output, _ in group.outputs)

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
        list of dict of str to array, or Exception
            A batch maps each field to an array of shape ``(total, window, ...)``. One that could not be read is the
            error instead; it costs no other batch.
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
        for group, tables in zip(self._groups, self._tables, strict=True):
            try:
                failures = await self._read_group(group, tables, samples, bounds, batches)
            except GuideLoomError as error:
                return [error] * len(batches)
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
            yield {name: array[i].copy() for name, array in batch.items()}

    def check_padding(self) -> None:
        """Raise ``ValueError`` if a batch could not say how many of its rows are windows."""
        if any(name == NUM_VALID for name, _, _ in self._arrays):
            raise ValueError(f"the field {NUM_VALID!r} clashes with what padded batches carry; use drop_last=True")

    def mark_valid(self, batch: Batch, rows: int) -> None:
        """Say in a batch how many of its rows are windows."""
        batch[NUM_VALID] = np.array(rows)

    async def _read_group(
        self,
        group: GroupFiles,
        tables: ChecksumTables | None,
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
        detail = np.zeros((count, 2), np.int64)
        job = ReadJob(
            file=file, offset=offset, length=length, batch=batch, element=element, base=base, status=status,
            detail=detail, row_bytes=group.row_bytes, keep=buffers,
            fields=[output.code(field_offset) for output, field_offset in group.outputs],
        )  # fmt: skip
        failures: dict[int, Exception] = {}
        if tables is not None:
            first = offset // BLOCK_BYTES
            blocks = (offset + length - 1) // BLOCK_BYTES - first + 1
            expected, keep, failures = await tables.expected(file, first, blocks)
            job.check(BLOCK_BYTES, group.file_bytes, group.seeds, expected, keep)
            for i in failures:
                status[i] = CORRUPT  # any status but pending: nothing is read for it
        await self._jobs.run(job, group.paths, file, arrays, failures)
        if not status.any():
            return {}
        errors: dict[int, Exception] = {}
        for i in np.flatnonzero(status).tolist():
            error = failures.get(i) or _error(job, group, i, int(file[i]), int(offset[i]), int(length[i]))
            errors.setdefault(int(row[i]), error)
        return errors


def _error(job: ReadJob, group: GroupFiles, piece: int, file: int, offset: int, length: int) -> Exception:
    """Make the error for a piece that failed."""
    path, status = group.paths[file], int(job.status[piece])
    first, second = (int(value) for value in job.detail[piece])
    if status == SHORT:
        return short_read(path, offset, length, first)
    if status == CORRUPT:
        begin = first * BLOCK_BYTES
        size = min(BLOCK_BYTES, int(group.file_bytes[file]) - begin)
        expected, found = second >> 32 & 0xFFFFFFFF, second & 0xFFFFFFFF
        return CorruptionError(
            f"{path} is damaged: bytes {begin} to {begin + size} should have checksum {expected:#010x}, and have "
            f"{found:#010x}, twice. Restore the file, or write the shard again",
            path=path,
            offset=begin,
            length=size,
            expected=expected,
            found=found,
        )
    if status == OVERFLOW:
        output = group.outputs[first][0]
        at = offset + second // output.num_elements * group.row_bytes
        return ConversionError(
            f"field {output.name!r} holds a value at byte {at} of {path} that does not fit {output.dtype}; it is "
            f"stored as {output.field.dtype}; ask for a dtype that holds all of its values",
            field=output.name,
            path=path,
            offset=at,
        )
    return errno_error(status, path, offset, length)
