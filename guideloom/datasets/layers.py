"""Read the spans of a layer that touch some windows: three reads for many batches, whatever they hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guideloom._speedups.planning import count_pieces, plan_windows
from guideloom._speedups.reading import PENDING, Buffers
from guideloom._speedups.spans import BAD_PAYLOAD, DISORDER, UNEVEN, check_payloads, find_spans, lay_out_spans
from guideloom._typing import AnyArray, Int32Array, Int64Array, UInt8Array, UInt32Array
from guideloom.backends.base import ReadBackend
from guideloom.datasets.grid import WindowGrid
from guideloom.datasets.jobs import JobRunner, logger
from guideloom.datasets.layer_files import LayerFiles
from guideloom.datasets.pieces import CheckedFiles, PieceReader, plain_job, read_flat
from guideloom.datasets.span_index import Candidates, SpanIndex
from guideloom.datasets.spans import Spans
from guideloom.errors import BackendError
from guideloom.storage.span_table import SPAN_BYTES

# Of rows, and of payloads, for one batch: more is refused before memory is taken for it.
MOST_BATCH_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Windows cut at the edges of shards: an entry a piece, and what became of it.

    Parameters
    ----------
    row : int32 array of shape (n,)
        The window, as a place among the samples that are read.
    file : int32 array of shape (n,)
        The shard.
    begin, length : int64 array of shape (n,)
        Elements of the shard.
    batch : int32 array of shape (n,)
        The batch.
    element : int64 array of shape (n,)
        The first element in the batch.
    failures : dict of int to Exception
        The errors by piece.
    """

    row: Int32Array
    file: Int32Array
    begin: Int64Array
    length: Int64Array
    batch: Int32Array
    element: Int64Array
    failures: dict[int, Exception]

    @property
    def failed(self) -> list[int]:
        """The pieces with an error."""
        return list(self.failures)

    def __len__(self) -> int:
        return len(self.file)


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows of the pieces, and their payloads.

    Parameters
    ----------
    candidates : Candidates
        Which rows were read.
    rows : uint32 array of shape (num_rows, 4)
        These, piece after piece.
    position : int64 array of shape (n,)
        Where those of each piece begin.
    found : int64 array of shape (n, 6)
        As `find_spans` gives it.
    payloads : list of uint8 array
        Room for the payloads of each batch.
    payload_position, address : int64 array of shape (n,)
        Where those of each piece go in it, and in memory.
    """

    candidates: Candidates
    rows: UInt32Array
    position: Int64Array
    found: Int64Array
    payloads: list[UInt8Array]
    payload_position: Int64Array
    address: Int64Array

    @property
    def num_bytes(self) -> int:
        """Bytes of all payloads."""
        return int(self.found[:, 4].sum())


class LayerReader:
    """Reads the spans of one layer that touch the windows of a grid.

    Parameters
    ----------
    backend : ReadBackend
        Open; it stays open until the last read has ended.
    jobs : JobRunner
        Over the same backend.
    grid : WindowGrid
        Where the windows lie.
    files : LayerFiles
        The layer.
    verify : bool
        Whether blocks of rows, and rows with their payloads, are compared with their checksums.
    """

    def __init__(
        self, backend: ReadBackend, jobs: JobRunner, grid: WindowGrid, files: LayerFiles, *, verify: bool
    ) -> None:
        self.name = files.name
        self._jobs = jobs
        self._grid = grid
        self._files = files
        self._verify = verify
        self._rows = PieceReader(backend, jobs, files.spans, verify=verify)
        self._index = SpanIndex(
            self._rows, files.num_spans, files.num_entries, files.block_elements, files.payload_bytes
        )
        payloads = CheckedFiles(files.payload_paths, (), files.payload_bytes, files.spans.seeds)
        self._payloads = PieceReader(backend, jobs, payloads, verify=False)  # their checksums stand in the rows
        self._item, self._item_bytes = files.item, files.item_bytes

    @property
    def window_bytes(self) -> int:
        """Bytes of the spans of one window, on average."""
        total = 40 * int(self._files.num_spans.sum()) + int(self._files.payload_bytes.sum())
        return 8 + total * self._grid.window // max(int(self._grid.starts[-1]), 1)

    async def read(
        self, samples: Int64Array, valid: Sequence[int], total: Sequence[int]
    ) -> tuple[list[Spans | None], dict[int, Exception]]:
        """Read the spans of some batches.

        Parameters
        ----------
        samples, valid, total
            As `WindowReader.read` takes them.

        Returns
        -------
        batches : list of Spans or None
            None where a window of the batch failed.
        errors : dict of int to Exception
            By place in `samples`.
        """
        bounds = np.zeros(len(valid) + 1, np.int64)
        np.cumsum(valid, out=bounds[1:])
        pieces = self._cut(samples, bounds)
        found = await self._find(pieces, len(total))
        await self._read_payloads(pieces, found)
        batches = await self._lay_out(pieces, found, total)
        errors: dict[int, Exception] = {}
        for i in sorted(pieces.failures):
            errors.setdefault(int(pieces.row[i]), pieces.failures[i])
        if self._item is None:
            self._decode(batches, bounds, errors)
        return batches, errors

    def _cut(self, samples: Int64Array, bounds: Int64Array) -> _Pieces:
        grid = self._grid
        count = count_pieces(samples, grid.window, grid.stride, grid.offset, grid.starts)
        row, file, batch = (np.empty(count, np.int32) for _ in range(3))
        begin, length, element = (np.empty(count, np.int64) for _ in range(3))
        no_offsets = np.zeros(len(grid.starts) - 1, np.int64)
        plan_windows(
            samples, bounds, grid.window, grid.stride, grid.offset, grid.starts, 1, no_offsets,
            row, file, begin, length, batch, element,
        )  # fmt: skip
        return _Pieces(row, file, begin, length, batch, element, {})

    async def _find(self, pieces: _Pieces, num_batches: int) -> _Found:
        """Read the rows that may touch the pieces, find those that do, and make room for their payloads."""
        candidates, failures = await self._index.candidates(pieces.file, pieces.begin, pieces.length)
        pieces.failures.update(failures)
        num_rows = candidates.num_rows
        self._refuse_large(pieces, SPAN_BYTES * num_rows)
        num_rows[pieces.failed] = 0
        if self._index.keeps_rows:
            rows, position = self._index.kept_rows(pieces.file, candidates.lowest)
        else:
            rows, position = await self._read_rows(pieces, candidates)
        status, detail = np.zeros(len(pieces), np.int32), np.zeros((len(pieces), 2), np.int64)
        status[pieces.failed] = PENDING
        found = np.empty((len(pieces), 6), np.int64)
        find_spans(
            rows, position, num_rows, candidates.num_before, candidates.block_start, pieces.begin, pieces.length,
            np.diff(self._grid.starts)[pieces.file], candidates.payload_base, self._files.payload_bytes[pieces.file],
            status, detail, found,
        )  # fmt: skip
        for i in np.flatnonzero(status == DISORDER).tolist():
            pieces.failures[i] = self._files.disorder(int(pieces.file[i]), int(candidates.lowest[i] + detail[i, 0]))
        self._refuse_large(pieces, found[:, 4])
        found[pieces.failed] = 0
        return self._with_room(pieces, candidates, rows, position, found, num_batches)

    async def _read_rows(self, pieces: _Pieces, candidates: Candidates) -> tuple[UInt32Array, Int64Array]:
        """Return the rows of all pieces, and where those of each begin."""
        num_rows = candidates.num_rows
        some = np.flatnonzero(num_rows)
        data, _, errors = await read_flat(
            self._rows, pieces.file[some], SPAN_BYTES * candidates.lowest[some], SPAN_BYTES * num_rows[some]
        )
        pieces.failures.update({int(some[i]): error for i, error in errors.items()})
        return data.view(np.uint32).reshape(-1, 4), np.cumsum(num_rows) - num_rows

    def _with_room(
        self,
        pieces: _Pieces,
        candidates: Candidates,
        rows: UInt32Array,
        position: Int64Array,
        found: Int64Array,
        num_batches: int,
    ) -> _Found:
        ends = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum(found[:, 4], out=ends[1:])
        first = np.searchsorted(pieces.batch, np.arange(num_batches + 1, dtype=np.int32))
        payloads = [np.empty(size, np.uint8) for size in np.diff(ends[first]).tolist()]
        at = ends[:-1] - ends[first[pieces.batch]]
        return _Found(candidates, rows, position, found, payloads, at, _addresses(payloads)[pieces.batch] + at)

    def _refuse_large(self, pieces: _Pieces, num_bytes: Int64Array) -> None:
        """Let the batches fail that would take more memory than one may."""
        if int(num_bytes.sum()) <= MOST_BATCH_BYTES:
            return
        by_batch = np.bincount(pieces.batch, num_bytes)
        for batch in np.flatnonzero(by_batch > MOST_BATCH_BYTES).tolist():
            error = BackendError(
                f"layer {self.name!r} has {by_batch[batch]:,.0f} bytes of spans for one batch, and at most "
                f"{MOST_BATCH_BYTES:,} are read; use a smaller batch or window"
            )
            for i in np.flatnonzero(pieces.batch == batch).tolist():
                pieces.failures.setdefault(i, error)

    async def _read_payloads(self, pieces: _Pieces, found: _Found) -> None:
        """Read the payloads of all pieces, and check them; once more, if they are not as they were written."""
        some = np.flatnonzero(found.found[:, 4]).astype(np.int32)
        file, offset, length = pieces.file[some], found.found[some, 3], found.found[some, 4]
        job = plain_job(file, offset, length, pieces.batch[some], found.payload_position[some], found.payloads)
        errors = await self._payloads.run(job, found.payloads, file, offset, length)
        pieces.failures.update({int(some[i]): error for i, error in errors.items()})
        status, detail = np.zeros(len(pieces), np.int32), np.zeros((len(pieces), 2), np.int64)
        status[pieces.failed] = PENDING
        bad = await self._check(pieces, found, np.arange(len(pieces), dtype=np.int32), status, detail)
        again = bad[found.found[bad, 4] > 0]  # a row without a payload was checked with its block
        if len(again):
            part = np.searchsorted(some, again).astype(np.int32)
            errors = await self._payloads.run_again(job, found.payloads, file, offset, length, part)
            pieces.failures.update({int(some[i]): error for i, error in errors.items()})
            status[again] = 0
            status[pieces.failed] = PENDING
            still = await self._check(pieces, found, again, status, detail)
            for i in set(again.tolist()).difference(still.tolist(), pieces.failed):
                path = self._files.payload_paths[int(pieces.file[i])]
                logger.warning("%s: a damaged payload was read right at the second attempt", path)
        for i in np.flatnonzero((status == BAD_PAYLOAD) | (status == UNEVEN)).tolist():
            number = int(found.candidates.lowest[i] + detail[i, 0])
            offset_read, length_read = found.found[i, 3:5].tolist()
            pieces.failures[i] = self._files.bad_payload(
                int(pieces.file[i]), number, int(status[i]), int(detail[i, 1]), offset_read, length_read
            )

    async def _check(
        self, pieces: _Pieces, found: _Found, which: Int32Array, status: Int32Array, detail: Int64Array
    ) -> Int32Array:
        """Check the payloads of some pieces, and return those that do not match their checksums."""
        seeds = self._files.spans.seeds[pieces.file]

        def check() -> None:
            check_payloads(
                found.rows, found.position, found.candidates.lowest, found.found, seeds, found.address,
                self._item_bytes, self._verify, which, status, detail,
            )  # fmt: skip

        await self._jobs.call(check, found.num_bytes)
        bad: Int32Array = which[status[which] == BAD_PAYLOAD]
        return bad

    async def _lay_out(self, pieces: _Pieces, found: _Found, total: Sequence[int]) -> list[Spans | None]:
        """Return the spans of each batch, payloads as bytes where they are to be decoded."""
        status = np.zeros(len(pieces), np.int32)
        status[pieces.failed] = PENDING
        num_spans = np.bincount(pieces.batch, found.found[:, 2], minlength=len(total)).astype(np.int64)
        sizes = zip(total, num_spans.tolist(), strict=True)
        blocks = [np.empty(count + 1 + 5 * n + 1, np.int64) for count, n in sizes]
        num_windows, shard_start = np.array(total, np.int64), self._grid.starts[pieces.file]

        def lay_out() -> None:
            lay_out_spans(
                found.rows, found.position, found.candidates.num_before, found.candidates.block_start, pieces.begin,
                pieces.length, shard_start, pieces.element, found.found, found.address, pieces.batch,
                self._grid.window, self._item_bytes, status, num_windows, num_spans, _addresses(blocks),
                _addresses(found.payloads),
            )  # fmt: skip

        await self._jobs.call(lay_out, found.num_bytes)
        failed = set(pieces.batch[pieces.failed].tolist())
        return [
            None if b in failed else self._spans(block, count, payload)
            for b, (block, count, payload) in enumerate(zip(blocks, total, found.payloads, strict=True))
        ]

    def _spans(self, block: Int64Array, num_windows: int, payload: UInt8Array) -> Spans:
        """Return the spans of one batch as views of what was laid out."""
        at = num_windows + 1
        n = (len(block) - at - 1) // 5
        start, end, true_start, true_end = (block[at + i * n : at + (i + 1) * n] for i in range(4))
        offsets = block[at + 4 * n :]
        values: AnyArray = payload[: self._item_bytes * int(offsets[-1])]
        if self._item is not None:
            values = values.view(self._item.base).reshape(-1, *self._item.shape)
        return Spans(self._grid.window, block[:at], start, end, true_start, true_end, values, offsets)

    def _decode(self, batches: list[Spans | None], bounds: Int64Array, errors: dict[int, Exception]) -> None:
        """Replace the bytes of payloads by what the encoding makes of them."""
        for b, spans in enumerate(batches):
            if spans is None:
                continue
            assert spans.offsets is not None
            data = memoryview(spans.values).toreadonly()  # type: ignore[arg-type]  # an array
            values: list[Any] = []
            try:
                for low, high in itertools.pairwise(spans.offsets.tolist()):
                    values.append(self._files.encoding.decode(data[low:high]))
            except Exception as error:
                row = int(bounds[b] + np.searchsorted(spans.row_offsets, len(values), "right") - 1)
                errors[row] = self._files.undecodable(spans, len(values), error)
                batches[b] = None
            else:
                batches[b] = replace(spans, values=values, offsets=None)


def _addresses(arrays: Sequence[AnyArray]) -> Int64Array:
    addresses, sizes = np.empty(len(arrays), np.int64), np.empty(len(arrays), np.int64)
    Buffers(arrays).fill(addresses, sizes)
    return addresses
