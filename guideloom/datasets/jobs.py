"""Run read jobs over any backend: on its own threads where it can, or through ranges; damaged pieces twice."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import numpy as np

from guideloom._speedups.reading import CORRUPT, PENDING, ReadJob
from guideloom._typing import AnyArray, Int32Array
from guideloom.backends.base import ReadBackend, RunsJobs, attempt
from guideloom.backends.pool import ReadPool
from guideloom.ranges import ByteRanges

logger = logging.getLogger("guideloom")

# Laying out more bytes than this takes longer than a hop to another thread.
MOST_INLINE_BYTES = 256 * 1024


class JobRunner:
    """Reads the pieces of jobs from an open backend.

    Parameters
    ----------
    backend : ReadBackend
        Open; it stays open until the last job has ended.
    """

    def __init__(self, backend: ReadBackend) -> None:
        _keep_freed_memory()
        self._backend = backend
        self._runner = backend if isinstance(backend, RunsJobs) else None
        self._pool = ReadPool(1)  # not the loop's own executor, which the program may keep busy

    async def run(
        self,
        job: ReadJob,
        paths: Sequence[str],
        file: Int32Array,
        arrays: Sequence[AnyArray],
        failures: dict[int, Exception],
    ) -> None:
        """Read every pending piece, those that are damaged once more; each gets its status.

        Parameters
        ----------
        job : ReadJob
            What to read, and into which memory.
        paths : sequence of str
            Names relative to the backend's root.
        file : int32 array of shape (num_pieces,)
            Index into `paths` for each piece.
        arrays : sequence of array
            The memory of the job, by number of batch.
        failures : dict of int to Exception
            Pieces that have failed before, which are not read again; those whose ranges fail are added.
        """
        if self._runner is not None:
            await self._runner.run(job, paths, file)
        else:
            await self._read_through_ranges(job, paths, file, arrays, failures)
        damaged = np.flatnonzero(job.status == CORRUPT).tolist()
        again = np.array([i for i in damaged if i not in failures], np.int32)
        if not len(again):
            return
        await self.run_again(job, paths, file, arrays, failures, again)
        for i in again[job.status[again] == 0].tolist():
            logger.warning("%s: damaged bytes were read right at the second attempt", paths[file[i]])

    async def run_again(
        self,
        job: ReadJob,
        paths: Sequence[str],
        file: Int32Array,
        arrays: Sequence[AnyArray],
        failures: dict[int, Exception],
        pieces: Int32Array,
    ) -> None:
        """Read damaged pieces once more: what was wrong on its way here may be right on the disk. See `run`."""
        if self._runner is not None:
            await self._runner.run_again(job, paths, file, pieces)
        else:
            job.status[pieces] = PENDING
            await self._read_through_ranges(job, paths, file, arrays, failures)

    async def call(self, function: Callable[[], None], num_bytes: int | None) -> None:
        """Call a function here, or, if it works on many bytes, on a thread.

        With ``None`` for the bytes it is always that one thread, so that no two such calls run at a time.
        """
        if num_bytes is not None and num_bytes <= MOST_INLINE_BYTES:
            function()
        else:
            await self._pool.run(function)

    async def _read_through_ranges(
        self,
        job: ReadJob,
        paths: Sequence[str],
        file: Int32Array,
        arrays: Sequence[AnyArray],
        failures: dict[int, Exception],
    ) -> None:
        """Read the pending pieces by the common protocol, then check them and lay them out."""
        num_ranges, scratch_bytes = job.num_ranges()
        piece, range_file, buffer = (np.empty(num_ranges, np.int32) for _ in range(3))
        offset, length, position = (np.empty(num_ranges, np.int64) for _ in range(3))
        job.fill_ranges(len(arrays), piece, range_file, offset, length, buffer, position)
        wanted = np.flatnonzero(job.status[piece] == PENDING)
        scratch = np.empty(max(scratch_bytes, 1), np.uint8)
        ranges = ByteRanges(paths, range_file[wanted], offset[wanted], length[wanted], buffer[wanted], position[wanted])
        buffers = [array.reshape(-1).view(np.uint8).data for array in (*arrays, scratch)]
        failed = await attempt(self._backend, ranges, buffers)
        for i, reason in failed.items():
            failures[int(piece[wanted[i]])] = reason
        job.status[[int(piece[wanted[i]]) for i in failed]] = CORRUPT
        await self.call(functools.partial(job.finish, scratch), job.num_bytes())


@functools.cache
def _keep_freed_memory() -> None:
    """Let glibc keep the memory of batches that were freed for those to come.

    It gives freed memory above a threshold back to the kernel, and each page of it then costs a fault. The threshold
    follows the largest block that was freed so far, up to 32 MiB; no page of this one is ever touched.
    """
    np.empty(31 * 2**20, np.uint8)
