"""The sparse indexes of a layer: which rows may hold spans that touch some elements."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from guideloom._typing import Int32Array, Int64Array, UInt32Array
from guideloom.datasets.pieces import PieceReader, read_flat
from guideloom.errors import CorruptionError
from guideloom.storage.span_table import INDEX_BYTES, INDEX_DTYPE, SPAN_BYTES

# The rows and indexes of a layer are kept in memory up to so many bytes in all: those of some 400 M elements with spans
# of 100. Beyond that its indexes alone are, up to as many: those of some 4 G elements.
MOST_KEPT_BYTES = 64 * 2**20


class Candidates(NamedTuple):
    """The rows that may touch some pieces of shards, an entry a piece.

    Parameters
    ----------
    lowest, num_rows, num_before : int64 array of shape (n,)
        The first of these rows, how many there are, and how many of them start before `block_start`.
    block_start : int64 array of shape (n,)
        First element of the block that the piece begins in.
    payload_base : int64 array of shape (n,)
        Where in its file the payload of the first row begins.
    """

    lowest: Int64Array
    num_rows: Int64Array
    num_before: Int64Array
    block_start: Int64Array
    payload_base: Int64Array


class SpanIndex:
    """Rows and sparse indexes of the shards of one layer.

    What fits into `MOST_KEPT_BYTES` for all shards together, rows and indexes or else indexes, is read when a shard is
    first touched, and kept. Otherwise the entries that are needed are read each time.

    Parameters
    ----------
    reader : PieceReader
        Reads the files of spans.
    num_spans, num_entries, block_elements, payload_bytes : int64 array of shape (num_shards,)
        Of each shard, from the manifest: rows, and then entries of its index, make up its file of spans.
    """

    def __init__(
        self,
        reader: PieceReader,
        num_spans: Int64Array,
        num_entries: Int64Array,
        block_elements: Int64Array,
        payload_bytes: Int64Array,
    ) -> None:
        self._reader = reader
        self._num_spans = num_spans
        self._block_elements = block_elements
        self._payload_bytes = payload_bytes
        num_rows, num_index = sum(num_spans.tolist()), sum(num_entries.tolist())
        self.keeps_rows = SPAN_BYTES * (num_rows + num_index) <= MOST_KEPT_BYTES
        keeps_index = INDEX_BYTES * num_index <= MOST_KEPT_BYTES
        # Entries are as long as rows, so that both are counted alike.
        self._skipped = np.zeros_like(num_spans) if self.keeps_rows else num_spans
        self._count = num_entries + num_spans - self._skipped
        self._kept = np.empty((int(self._count.sum()) if keeps_index else 0, 4), np.uint32)
        self._keeps = keeps_index
        self._base = np.cumsum(self._count) - self._count
        self._loaded = np.zeros(len(num_spans), bool)
        self._all_loaded = False
        self._loading = asyncio.Lock()

    def kept_rows(self, file: Int32Array, number: Int64Array) -> tuple[UInt32Array, Int64Array]:
        """Return the rows in memory, and where some spans of shards that were loaded lie among them."""
        return self._kept, self._base[file] + number

    async def candidates(
        self, file: Int32Array, begin: Int64Array, length: Int64Array
    ) -> tuple[Candidates, dict[int, Exception]]:
        """Return which rows may touch some pieces, and the errors by piece; those have no rows.

        Parameters
        ----------
        file : int32 array of shape (n,)
            The shard of each piece.
        begin, length : int64 array of shape (n,)
            Its elements, at least one.
        """
        block = self._block_elements[file]
        first = begin // block
        last = (begin + length - 1) // block + 1
        if self._keeps:
            failures = {} if self._all_loaded else await self._load(file)
            base = self._base[file] + (self._num_spans - self._skipped)[file]
            entries, low, high = self._kept.view(INDEX_DTYPE)[:, 0], base + first, base + last
        else:
            entries, low, high, failures = await self._read_runs(file, first, last)
        if failures:
            low[list(failures)] = high[list(failures)] = 0
        lowest, before = entries["lowest"][low].astype(np.int64), entries["first"][low].astype(np.int64)
        end, offset = entries["first"][high].astype(np.int64), entries["payload_offset"][low].astype(np.int64)
        wrong = (lowest > before) | (before > end) | (end > self._num_spans[file])
        wrong |= (offset < 0) | (offset > self._payload_bytes[file])
        for i in np.flatnonzero(wrong).tolist():
            failures.setdefault(i, self._contradiction(int(file[i]), int(first[i])))
        if failures:
            lowest[list(failures)] = before[list(failures)] = end[list(failures)] = 0
        return Candidates(lowest, end - lowest, before - lowest, first * block, offset), failures

    async def _load(self, file: Int32Array) -> dict[int, Exception]:
        """Read what is kept of the shards of some pieces and still missing; return the errors by piece."""
        if self._loaded[file].all():
            return {}
        async with self._loading:
            missing = np.unique(file[~self._loaded[file]])
            errors = await self._read_kept(missing) if len(missing) else {}
        self._all_loaded = bool(self._loaded.all())
        return {i: errors[int(file[i])] for i in np.flatnonzero(~self._loaded[file]).tolist()}

    async def _read_kept(self, files: Int32Array) -> dict[int, Exception]:
        count = self._count[files]
        data, position, failures = await read_flat(
            self._reader, files, SPAN_BYTES * self._skipped[files], SPAN_BYTES * count
        )
        rows = data.view(np.uint32).reshape(-1, 4)
        for i, number in enumerate(files.tolist()):
            if i not in failures:
                at = position[i] // SPAN_BYTES
                self._kept[self._base[number] : self._base[number] + count[i]] = rows[at : at + count[i]]
                self._loaded[number] = True
        return {int(files[i]): error for i, error in failures.items()}

    async def _read_runs(
        self, file: Int32Array, first: Int64Array, last: Int64Array
    ) -> tuple[npt.NDArray[np.void], Int64Array, Int64Array, dict[int, Exception]]:
        """Read the entries `first` and `last` of some shards, and those between."""
        offset = SPAN_BYTES * self._num_spans[file] + INDEX_BYTES * first
        data, position, failures = await read_flat(self._reader, file, offset, INDEX_BYTES * (last - first + 1))
        low = position // INDEX_BYTES
        return data.view(INDEX_DTYPE), low, low + last - first, failures

    def _contradiction(self, shard: int, entry: int) -> CorruptionError:
        path = self._reader.files.paths[shard]
        offset = SPAN_BYTES * int(self._num_spans[shard]) + INDEX_BYTES * entry
        return CorruptionError(
            f"{path}: entry {entry} of the index, at byte {offset}, contradicts the {self._num_spans[shard]} spans of "
            "the shard. Restore the file, or write the layer again",
            path=path,
            offset=offset,
            length=INDEX_BYTES,
        )
