"""The files of one annotation layer of one shard, held against their hashes, span by span and entry by entry."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Generator, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from guideloom._speedups.crc32c import block_checksum, crc32c
from guideloom._speedups.spans import checksum_spans
from guideloom._typing import Int64Array
from guideloom.storage.content import DataFile
from guideloom.storage.layer_manifest import num_index_entries, spans_file_bytes
from guideloom.storage.records import LayerEntry, LayerRecord, ShardEntry
from guideloom.storage.span_table import INDEX_BYTES, INDEX_DTYPE, SPAN_BYTES, SPAN_DTYPE, SpanTable
from guideloom.storage.stream_manifest import StreamManifest
from guideloom.storage.verification import MOST_DAMAGES, Damage

# What is read next, as name, offset and buffer; whether it could be read comes back.
Reads: TypeAlias = Generator[tuple[str, int, memoryview], bool, None]

_ROWS = 8192  # at a time
_PAYLOAD_BYTES = 512 * 1024  # at a time
_INDEX_BYTES = 32_768 * INDEX_BYTES  # at a time
_CHECKED_BYTES = SPAN_BYTES - 4  # of a row; after them comes the checksum


@dataclasses.dataclass(frozen=True, slots=True)
class LayerShard:
    """One annotation layer of one shard, as manifests name it."""

    layer: LayerRecord
    shard: ShardEntry
    entry: LayerEntry

    @property
    def spans_file(self) -> DataFile:
        """The file of rows and index, with its side file of block checksums."""
        entry = self.entry
        num_bytes = spans_file_bytes(entry, self.shard.rows)
        file = DataFile(entry.file, num_bytes, entry.checksums, entry.checksum_seed, self.shard.number, [])
        return dataclasses.replace(file, layer=self.layer.name)

    @property
    def num_bytes(self) -> int:
        """Bytes that a check reads: the file of rows and index for its blocks and for its rows, and the payloads."""
        return 2 * spans_file_bytes(self.entry, self.shard.rows) + self.entry.payload_bytes


def layer_shards(manifests: Iterable[StreamManifest]) -> list[LayerShard]:
    """Return the layers of all shards that manifests name, each once."""
    found: dict[tuple[LayerEntry, int, int], LayerShard] = {}
    for manifest in manifests:
        for shard in manifest.shards:
            for layer, entry in zip(manifest.layers, shard.layers, strict=True):
                found.setdefault((entry, shard.number, shard.rows), LayerShard(layer, shard, entry))
    return list(found.values())


class LayerContent:
    """What a check of one layer of one shard finds in its rows, its index and its payloads.

    Parameters
    ----------
    part : LayerShard
        The layer of the shard.

    Attributes
    ----------
    is_proven : bool
        Whether rows and index have been read, and every byte of them follows from the hashes of the manifest.
    """

    def __init__(self, part: LayerShard) -> None:
        self._part = part
        self._entry = part.entry
        self._table = SpanTable(file_seed=part.entry.checksum_seed, block_elements=part.entry.block_elements)
        self._payload = memoryview(bytearray(min(_PAYLOAD_BYTES, part.entry.payload_bytes)))
        self._payload_hash = hashlib.sha256()
        self._payload_done = 0
        self._payloads_read = True
        self._index = np.empty(0, INDEX_DTYPE)
        self._rows_read = False
        self._contradiction: int | None = None  # the first row that no writer makes
        self._wrong: list[_Run] = []  # rows whose checksum differs
        self.is_proven = False

    def read(self, *, with_rows: bool) -> Reads:
        """Read and check everything, on any thread, and hash the payloads.

        Parameters
        ----------
        with_rows : bool
            Whether rows and index are worth it: not if blocks of them are damaged.

        Yields
        ------
        tuple of (str, int, memoryview)
            What is to be read, and into what; send whether it could be.
        """
        if with_rows:
            self._rows_read = yield from self._read_index()
            if self._rows_read:
                self._rows_read = yield from self._read_rows()
        while self._payloads_read and self._payload_done < self._entry.payload_bytes:
            yield from self._read_payload(self._entry.payload_bytes - self._payload_done)

    def finish(self, *, with_rows: bool) -> Iterator[Damage]:
        """Yield what is wrong with rows, index and payloads, all but their sizes; of rows and index only if asked."""
        entry = self._entry
        found = self._payload_hash.hexdigest()
        payload_is_right = self._payloads_read and found == entry.payload_sha256
        in_rows = [*self._wrong_rows(payload_is_right)] if self._rows_read else []
        self.is_proven = self._rows_read and self._payloads_read and not in_rows and not self._wrong
        if with_rows:
            yield from in_rows
        if payload_is_right:
            return
        for run in self._wrong:
            reason = "damaged: the checksum of the first span with these payloads differs"
            yield self._damage(entry.payloads, reason, run.payload, run.payload_end - run.payload, *run.differ)
        if self._payloads_read and not self._wrong:
            reason = "damaged or exchanged: its SHA-256 differs"
            yield self._damage(entry.payloads, reason, 0, entry.payload_bytes, entry.payload_sha256, found)

    def _damage(
        self, path: str, reason: str, offset: int, length: int, expected: int | str, found: int | str
    ) -> Damage:
        part = self._part
        return Damage(path, reason, part.shard.number, offset, length, expected, found, part.layer.name)

    def _wrong_rows(self, payload_is_right: bool) -> Iterator[Damage]:
        """Yield what is wrong with rows and index; an index can only be told from right rows."""
        entry, table = self._entry, self._table
        rows_bytes = SPAN_BYTES * entry.spans
        if self._contradiction is not None:
            offset = SPAN_BYTES * self._contradiction
            reason = f"row {self._contradiction} contradicts the rows before it, or the shard"
            part = self._part
            yield Damage(entry.file, reason, part.shard.number, offset, SPAN_BYTES, layer=part.layer.name)
            return
        if payload_is_right and self._wrong:
            for run in self._wrong:
                reason = "damaged: the checksum of the first of these rows differs"
                yield self._damage(
                    entry.file, reason, SPAN_BYTES * run.first, SPAN_BYTES * (run.end - run.first), *run.differ
                )
            return
        if table.content_hash() != entry.sha256:
            reason = "the SHA-256 of its rows differs: it was damaged, exchanged or rewritten"
            yield self._damage(entry.file, reason, 0, rows_bytes, entry.sha256, table.content_hash())
            return
        if table.payload_bytes != entry.payload_bytes:
            reason = "the payloads of its rows are not as long as those of the manifest"
            yield self._damage(entry.file, reason, 0, rows_bytes, entry.payload_bytes, table.payload_bytes)
            return
        _, index = table.finish(self._part.shard.rows)
        wrong = np.flatnonzero(index != self._index)
        if len(wrong):
            first, last = int(wrong[0]), int(wrong[-1])
            offset, length = rows_bytes + INDEX_BYTES * first, INDEX_BYTES * (last + 1 - first)
            reason = "entries of the index are not those of its rows"
            yield self._damage(entry.file, reason, offset, length, str(index[first]), str(self._index[first]))

    def _read_index(self) -> Generator[tuple[str, int, memoryview], bool, bool]:
        """Read the index, a piece at a time: a manifest may claim any size."""
        begin = SPAN_BYTES * self._entry.spans
        left = INDEX_BYTES * num_index_entries(self._entry, self._part.shard.rows)
        pieces: list[npt.NDArray[np.void]] = []
        while left:
            piece = np.empty(min(left, _INDEX_BYTES) // INDEX_BYTES, INDEX_DTYPE)
            if not (yield self._entry.file, begin, piece.view(np.uint8).data):
                return False
            pieces.append(piece)
            begin += piece.nbytes
            left -= piece.nbytes
        self._index = np.concatenate(pieces)
        return True

    def _read_rows(self) -> Generator[tuple[str, int, memoryview], bool, bool]:
        """Read all rows, each with its payload; return whether the rows could be read."""
        memory = np.empty(min(_ROWS, self._entry.spans), SPAN_DTYPE)
        last_start = 0
        for first in range(0, self._entry.spans, _ROWS):
            rows = memory[: self._entry.spans - first]
            if not (yield self._entry.file, SPAN_BYTES * first, rows.view(np.uint8).data):
                return False
            start = self._starts(rows, first)
            end = start + rows["length"]
            payload_bytes = rows["payload_bytes"].astype(np.int64)
            payload_end = self._table.payload_bytes + np.cumsum(payload_bytes)
            previous = np.concatenate(([last_start], start[:-1]))
            bad = (start < previous) | (end > self._part.shard.rows) | (payload_end > self._entry.payload_bytes)
            if bad.any():
                self._contradiction = first + int(bad.argmax())
                return True
            self._table.add(start, end, payload_bytes)
            last_start = int(start[-1])
            yield from self._check_payloads(rows, first, payload_end)
        return True

    def _starts(self, rows: npt.NDArray[np.void], first: int) -> Int64Array:
        """Return the starts of some rows, which hold 32 bits of them: the index says the block that each lies in."""
        number = np.arange(first, first + len(rows))
        block = np.searchsorted(self._index["first"], number, "right") - 1
        low = np.maximum(block, 0) * self._entry.block_elements
        start: Int64Array = low + ((rows["start"].astype(np.int64) - low) & 0xFFFFFFFF)
        return start

    def _check_payloads(self, rows: npt.NDArray[np.void], first: int, payload_end: Int64Array) -> Reads:
        """Hold the checksums of some rows against rows and payloads, as many as fit in memory at a time."""
        low = 0
        while low < len(rows) and self._payloads_read:
            high = int(np.searchsorted(payload_end, self._payload_done + len(self._payload), "right"))
            if high > low:
                found = rows[low:high].copy()
                num_bytes = int(payload_end[high - 1]) - self._payload_done
                if num_bytes:
                    yield from self._read_payload(num_bytes)
                if self._payloads_read:
                    payload = np.frombuffer(self._payload[:num_bytes], np.uint8)
                    numbers = found.view("<u4").reshape(-1, 4)
                    checksum_spans(numbers, payload, file_seed=self._entry.checksum_seed, first_span=first + low)
                    self._compare(rows[low:high], found["checksum"], first + low, payload_end[low:high])
            else:
                high = low + 1
                checked = rows[low:high].view(np.uint8)[:_CHECKED_BYTES]
                checksum = block_checksum(checked, file_seed=self._entry.checksum_seed, block=first + low)
                while self._payloads_read and self._payload_done < payload_end[low]:
                    done = self._payload_done
                    yield from self._read_payload(int(payload_end[low]) - done)
                    checksum = crc32c(self._payload[: self._payload_done - done], checksum)
                if self._payloads_read:
                    found_one = np.array([checksum], np.uint32)
                    self._compare(rows[low:high], found_one, first + low, payload_end[low:high])
            low = high

    def _read_payload(self, num_bytes: int) -> Reads:
        """Read and hash the next bytes of the payloads, so many or as many as fit."""
        piece = self._payload[:num_bytes]
        self._payloads_read = yield self._entry.payloads, self._payload_done, piece
        if self._payloads_read:
            self._payload_hash.update(piece)
            self._payload_done += len(piece)

    def _compare(
        self, rows: npt.NDArray[np.void], found: npt.NDArray[np.uint32], first: int, payload_end: Int64Array
    ) -> None:
        for i in np.flatnonzero(rows["checksum"] != found).tolist():
            end = int(payload_end[i])
            begin = end - int(rows["payload_bytes"][i])
            if self._wrong and self._wrong[-1].end == first + i:
                self._wrong[-1].end, self._wrong[-1].payload_end = first + i + 1, end
            elif len(self._wrong) < MOST_DAMAGES:
                differ = (f"{rows['checksum'][i]:#010x}", f"{found[i]:#010x}")
                self._wrong.append(_Run(first + i, first + i + 1, begin, end, differ))


@dataclasses.dataclass(slots=True)
class _Run:
    """Wrong rows one after the other: their numbers, where their payloads lie, and the first one's checksums."""

    first: int
    end: int
    payload: int
    payload_end: int
    differ: tuple[str, str]
