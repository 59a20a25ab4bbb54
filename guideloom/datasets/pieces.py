"""Read pieces of files whose blocks are checksummed, each checked and, if it was damaged on its way, read once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from guideloom._speedups.reading import BYTES_CODE, CORRUPT, SHORT, Buffers, ReadJob
from guideloom._typing import AnyArray, Int32Array, Int64Array, UInt8Array, UInt32Array
from guideloom.backends.base import ReadBackend, errno_error, short_read
from guideloom.datasets.jobs import JobRunner
from guideloom.errors import CorruptionError
from guideloom.storage.checksum_tables import ChecksumTables
from guideloom.storage.checksums import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """Files with side files of checksums.

    Parameters
    ----------
    paths, side_paths : sequence of str
        Data files and their checksum files, relative to the backend's root.
    file_bytes : int64 array of shape (num_files,)
        Sizes.
    seeds : uint32 array of shape (num_files,)
        Checksum seeds.
    """

    paths: Sequence[str]
    side_paths: Sequence[str]
    file_bytes: Int64Array
    seeds: UInt32Array


class PieceReader:
    """Reads pieces of some files: the common part of all that a stream is read from.

    Parameters
    ----------
    backend : ReadBackend
        Open; it stays open until the last read has ended.
    jobs : JobRunner
        Over the same backend.
    files : CheckedFiles
        What is read.
    verify : bool
        Whether every block is compared with its checksum before any of it is delivered.
    """

    def __init__(self, backend: ReadBackend, jobs: JobRunner, files: CheckedFiles, *, verify: bool) -> None:
        self.files = files
        self._jobs = jobs
        self._tables = ChecksumTables(backend, files.side_paths, files.seeds, files.file_bytes) if verify else None

    async def run(
        self,
        job: ReadJob,
        arrays: Sequence[AnyArray],
        file: Int32Array,
        offset: Int64Array,
        length: Int64Array,
        explain: Callable[[int], Exception] | None = None,
    ) -> dict[int, Exception]:
        """Read the pieces of a job into its arrays; return the errors by piece.

        Parameters
        ----------
        job : ReadJob
            What to read, and where each piece goes.
        arrays : sequence of array
            The memory of its base addresses.
        file, offset, length : array of shape (num_pieces,)
            The job's own.
        explain : callable, optional
            Makes the error of a piece that was read and could not be laid out.
        """
        failures: dict[int, Exception] = {}
        if self._tables is not None:
            first = offset // BLOCK_BYTES
            blocks = (offset + length - 1) // BLOCK_BYTES - first + 1
            expected, keep, failures = await self._tables.expected(file, first, blocks)
            job.check(BLOCK_BYTES, self.files.file_bytes, self.files.seeds, expected, keep)
            for i in failures:
                job.status[i] = CORRUPT  # any status but pending: nothing is read for it
        await self._jobs.run(job, self.files.paths, file, arrays, failures)
        if not job.status.any():
            return {}
        return {
            i: failures.get(i) or self._error(job, i, int(file[i]), int(offset[i]), int(length[i]), explain)
            for i in np.flatnonzero(job.status).tolist()
        }

    async def run_again(
        self,
        job: ReadJob,
        arrays: Sequence[AnyArray],
        file: Int32Array,
        offset: Int64Array,
        length: Int64Array,
        pieces: Int32Array,
    ) -> dict[int, Exception]:
        """Read some pieces of a job once more, which its caller found damaged; as `run`."""
        failures: dict[int, Exception] = {}
        await self._jobs.run_again(job, self.files.paths, file, arrays, failures, pieces)
        return {
            i: failures.get(i) or self._error(job, i, int(file[i]), int(offset[i]), int(length[i]), None)
            for i in pieces[job.status[pieces] != 0].tolist()
        }

    def _error(
        self,
        job: ReadJob,
        piece: int,
        file: int,
        offset: int,
        length: int,
        explain: Callable[[int], Exception] | None,
    ) -> Exception:
        """Make the error for a piece that failed."""
        path, status = self.files.paths[file], int(job.status[piece])
        first, second = (int(value) for value in job.detail[piece])
        if status == SHORT:
            return short_read(path, offset, length, first)
        if status == CORRUPT:
            begin = first * BLOCK_BYTES
            size = min(BLOCK_BYTES, int(self.files.file_bytes[file]) - begin)
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
        if explain is not None and status < 0:
            return explain(piece)
        return errno_error(status, path, offset, length)


async def read_flat(
    reader: PieceReader, file: Int32Array, offset: Int64Array, length: Int64Array
) -> tuple[UInt8Array, Int64Array, dict[int, Exception]]:
    """Read pieces of at least one byte each into one array.

    Returns
    -------
    data : uint8 array of shape (sum of `length`,)
    position : int64 array of shape (n,)
        Where each piece lies in it.
    failures : dict of int to Exception
        The pieces that could not be read.
    """
    position = np.cumsum(length) - length
    data = np.empty(int(length.sum()), np.uint8)
    batch = np.zeros(len(file), np.int32)
    job = plain_job(file, offset, length, batch, position, [data])
    return data, position, await reader.run(job, [data], file, offset, length)


def plain_job(
    file: Int32Array,
    offset: Int64Array,
    length: Int64Array,
    buffer: Int32Array,
    position: Int64Array,
    arrays: Sequence[AnyArray],
) -> ReadJob:
    """Return the job that reads pieces of bytes as they are, each to a position in one of some arrays."""
    buffers = Buffers(arrays)
    base, sizes = np.empty((1, len(arrays)), np.int64), np.empty(len(arrays), np.int64)
    buffers.fill(base[0], sizes)
    return ReadJob(
        file=file, offset=offset, length=length, batch=buffer, element=position, base=base,
        status=np.empty(len(file), np.int32), detail=np.zeros((len(file), 2), np.int64), row_bytes=1, keep=buffers,
        fields=[(0, 1, 1, BYTES_CODE, BYTES_CODE)],
    )  # fmt: skip
