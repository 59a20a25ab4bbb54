"""The checksums that blocks are compared with, fetched when a shard is first touched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from guideloom._typing import Int32Array, Int64Array, UInt32Array
from guideloom.backends.base import ReadBackend, attempt
from guideloom.ranges import ByteRanges
from guideloom.storage.checksums import BLOCK_BYTES, parse_side_file

# Tables of up to so many bytes in all are kept in memory: those of 64 GiB of shards.
MOST_TABLE_BYTES = 64 * 2**20


class ChecksumTables:
    """Block checksums of a set of files.

    Small tables are read whole, once a file, and kept. Where all tables together are larger than `max_bytes`, only the
    entries that are needed are read, each time.

    Parameters
    ----------
    backend : ReadBackend
        An open backend.
    paths : sequence of str
        The side file of each file.
    seeds : uint32 array of shape (n,)
        The checksum seed of each file.
    file_bytes : int64 array of shape (n,)
        The size of each file.
    max_bytes : int
        Most memory for tables.
    """

    def __init__(
        self,
        backend: ReadBackend,
        paths: Sequence[str],
        seeds: UInt32Array,
        file_bytes: Int64Array,
        max_bytes: int = MOST_TABLE_BYTES,
    ) -> None:
        self._backend = backend
        self._paths = paths
        self._seeds = seeds
        self._num_blocks = -(-file_bytes // BLOCK_BYTES)
        # Of hostile sizes, the sum may not fit in 64 bits.
        self._in_memory = 4 * sum(self._num_blocks.tolist()) <= max_bytes
        self._tables: dict[int, UInt32Array] = {}
        self._addresses = np.zeros(len(paths), np.int64)
        self._loading = asyncio.Lock()

    async def expected(
        self, file: Int32Array, first: Int64Array, count: Int64Array
    ) -> tuple[Int64Array, object, dict[int, Exception]]:
        """Return where the checksums of some runs of blocks lie in memory.

        Parameters
        ----------
        file : int32 array of shape (n,)
            The file of each run.
        first, count : int64 array of shape (n,)
            Its first block, and how many it has.

        Returns
        -------
        addresses : int64 array of shape (n,)
            Of the first checksum of each run.
        keep : object
            Owns that memory.
        failures : dict of int to Exception
            The runs whose checksums could not be read.
        """
        if not self._in_memory:
            return await self._read_runs(file, first, count)
        failures: dict[int, Exception] = {}
        if not self._addresses[file].all():
            async with self._loading:
                missing = sorted(set(file[self._addresses[file] == 0].tolist()))
                errors = await self._load(np.array(missing, np.int32)) if missing else {}
            for i in np.flatnonzero(self._addresses[file] == 0).tolist():
                failures[i] = errors[int(file[i])]
        return self._addresses[file] + 4 * first, self._tables, failures

    async def _load(self, files: Int32Array) -> dict[int, Exception]:
        sizes = 4 * (self._num_blocks[files] + 1)
        buffers = [bytearray(size) for size in sizes.tolist()]
        ranges = ByteRanges(
            paths=self._paths,
            file=files,
            offset=np.zeros(len(files), np.int64),
            length=sizes,
            buffer=np.arange(len(files), dtype=np.int32),
            position=np.zeros(len(files), np.int64),
        )
        failures = await attempt(self._backend, ranges, [memoryview(buffer) for buffer in buffers])
        errors: dict[int, Exception] = {}
        for i, file in enumerate(files.tolist()):
            try:
                if i in failures:
                    raise failures[i]
                table = parse_side_file(
                    bytes(buffers[i]),
                    file_seed=int(self._seeds[file]),
                    num_blocks=int(self._num_blocks[file]),
                    path=self._paths[file],
                )
            except Exception as error:
                errors[file] = error
                continue
            self._tables[file] = table
            self._addresses[file] = table.__array_interface__["data"][0]
        return errors

    async def _read_runs(
        self, file: Int32Array, first: Int64Array, count: Int64Array
    ) -> tuple[Int64Array, object, dict[int, Exception]]:
        position = 4 * (np.cumsum(count) - count)
        entries = np.empty(int(count.sum()), "<u4")
        ranges = ByteRanges(
            paths=self._paths,
            file=file,
            offset=4 * first,
            length=4 * count,
            buffer=np.zeros(len(file), np.int32),
            position=position,
        )
        failures = await attempt(self._backend, ranges, [entries.view(np.uint8).data])
        return entries.__array_interface__["data"][0] + position, entries, failures
