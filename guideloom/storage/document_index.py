"""The rows of documents in the indexes of their shards: from memory where these are small, else by range."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from guideloom._typing import Int32Array, Int64Array, UInt8Array
from guideloom.backends.base import ReadBackend, attempt
from guideloom.ranges import ByteRanges

# Indexes of up to so many bytes in all are kept in memory: those of some 6 million documents.
MOST_INDEX_BYTES = 128 * 2**20


class DocumentIndex:
    """Rows of the indexes of a set of shards; what they say is for the caller to check.

    Small indexes are read whole, a shard when it is first touched, and kept. Where all together are larger than
    `max_bytes`, only the rows that are needed are read, each time, all of a call at once.

    Parameters
    ----------
    backend : ReadBackend
        An open backend.
    paths : sequence of str
        The index of each shard.
    file_bytes : int64 array of shape (n,)
        Its size.
    row_bytes : int
        Bytes of a row.
    max_bytes : int
        Most memory for indexes.
    """

    def __init__(
        self,
        backend: ReadBackend,
        paths: Sequence[str],
        file_bytes: Int64Array,
        row_bytes: int,
        max_bytes: int = MOST_INDEX_BYTES,
    ) -> None:
        self._backend = backend
        self._paths = paths
        self._file_bytes = file_bytes
        self._row_bytes = row_bytes
        # Of hostile sizes, the sum may not fit in 64 bits.
        self._in_memory = sum(file_bytes.tolist()) <= max_bytes
        self._tables: dict[int, UInt8Array] = {}
        self._addresses = np.zeros(len(paths), np.int64)
        self._loading = asyncio.Lock()

    async def rows(
        self, file: Int32Array, record: Int64Array, *, afresh: bool = False
    ) -> tuple[Int64Array, object, dict[int, Exception]]:
        """Return where rows lie in memory.

        Parameters
        ----------
        file : int32 array of shape (n,)
            The shard of each document.
        record : int64 array of shape (n,)
            Its number in the shard.
        afresh : bool, default False
            Whether to read the rows in any case, since those in memory were damaged.

        Returns
        -------
        addresses : int64 array of shape (n,)
            Of the row of each document. The row before it, if it is not the first, lies just before. 0 for one that
            could not be read.
        keep : object
            Owns that memory.
        failures : dict of int to Exception
            The documents whose rows could not be read.
        """
        if afresh or not self._in_memory:
            return await self._read_rows(file, record)
        failures: dict[int, Exception] = {}
        if not self._addresses[file].all():
            async with self._loading:
                missing = np.unique(file[self._addresses[file] == 0])
                errors = await self._load(missing) if len(missing) else {}
            for i in np.flatnonzero(self._addresses[file] == 0).tolist():
                failures[i] = errors[int(file[i])]
        base = self._addresses[file]
        return np.where(base == 0, 0, base + self._row_bytes * record), self._tables, failures

    def forget(self, file: int) -> None:
        """Let go of the index of a shard that was read damaged; it is read again when it is needed."""
        self._addresses[file] = 0
        self._tables.pop(file, None)

    async def _load(self, files: Int32Array) -> dict[int, Exception]:
        tables = [np.empty(size, np.uint8) for size in self._file_bytes[files].tolist()]
        ranges = ByteRanges(
            paths=self._paths,
            file=files,
            offset=np.zeros(len(files), np.int64),
            length=self._file_bytes[files],
            buffer=np.arange(len(files), dtype=np.int32),
            position=np.zeros(len(files), np.int64),
        )
        failures = await attempt(self._backend, ranges, [table.data for table in tables])
        for i, file in enumerate(files.tolist()):
            if i not in failures:
                self._tables[file] = tables[i]
                self._addresses[file] = tables[i].__array_interface__["data"][0]
        return {int(files[i]): error for i, error in failures.items()}

    async def _read_rows(self, file: Int32Array, record: Int64Array) -> tuple[Int64Array, object, dict[int, Exception]]:
        first = np.maximum(record - 1, 0)
        length = self._row_bytes * (record - first + 1)
        position = np.cumsum(length) - length
        rows = np.empty(int(length.sum()), np.uint8)
        ranges = ByteRanges(
            paths=self._paths,
            file=file,
            offset=self._row_bytes * first,
            length=length,
            buffer=np.zeros(len(file), np.int32),
            position=position,
        )
        failures = await attempt(self._backend, ranges, [rows.data])
        addresses = rows.__array_interface__["data"][0] + position + length - self._row_bytes
        addresses[list(failures)] = 0
        return addresses, rows, failures
