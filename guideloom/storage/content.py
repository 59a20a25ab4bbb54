"""The content of one data file, held block by block against its checksums, and as a whole against its hashes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from guideloom._speedups.crc32c import block_checksum, block_checksums, crc32c
from guideloom._typing import UInt8Array, UInt32Array
from guideloom.errors import MissingFileError, ShortReadError
from guideloom.storage.checksums import BLOCK_BYTES, TABLE_BLOCK
from guideloom.storage.stream_manifest import StreamManifest
from guideloom.storage.verification import MOST_DAMAGES, Damage


@dataclasses.dataclass(slots=True)
class Span:
    """Bytes of a file with a hash of their own."""

    start: int
    length: int
    sha256: str
    shard: int


@dataclasses.dataclass(slots=True)
class DataFile:
    """A file that manifests name: its size, the first shard in it, what is hashed, its side file of block checksums."""

    path: str
    num_bytes: int
    side: str
    seed: int
    shard: int
    spans: list[Span]
    layer: str | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks of the file, a short last one included."""
        return -(-self.num_bytes // BLOCK_BYTES)


def data_files(manifests: Iterable[StreamManifest]) -> list[DataFile]:
    """Return the data files that manifests name, each once, with the rows of every shard in it."""
    files: dict[tuple[str, int, str, int], DataFile] = {}
    for manifest in manifests:
        for shard in manifest.shards:
            for group, entry in zip(manifest.groups, shard.files, strict=True):
                facts = (entry.file, entry.bytes, entry.checksums, entry.checksum_seed)
                file = files.setdefault(facts, DataFile(*facts, shard.number, []))
                span = Span(entry.byte_offset, shard.rows * group.row_bytes, entry.sha256, shard.number)
                if span not in file.spans:
                    file.spans.append(span)
    return list(files.values())


class Chunk:
    """Memory for some blocks of a file, and for their checksums as stored and as computed.

    Parameters
    ----------
    num_blocks : int
        Most blocks at a time.
    """

    def __init__(self, num_blocks: int) -> None:
        self.most_blocks = num_blocks
        self._memory = np.empty(num_blocks * BLOCK_BYTES, np.uint8)
        self._stored = np.empty(num_blocks + 1, "<u4")
        self._found = np.empty(num_blocks, "<u4")

    def place(self, file: DataFile, first: int) -> list[tuple[str, int, memoryview]]:
        """Be the blocks of a file from `first` on, as many as there is room for.

        Returns
        -------
        list of (str, int, memoryview)
            What to read, and into what: the blocks, and their checksums, the last with that of their table.
        """
        num_blocks = min(self.most_blocks, file.num_blocks - first)
        self.first = first
        self.offset = first * BLOCK_BYTES
        self.data: UInt8Array = self._memory[: min(num_blocks * BLOCK_BYTES, file.num_bytes - self.offset)]
        self.found: UInt32Array = self._found[:num_blocks]
        self.is_last = first + num_blocks == file.num_blocks
        self.stored: UInt32Array = self._stored[: num_blocks + self.is_last]
        return [(file.path, self.offset, self.data.data), (file.side, 4 * first, self.stored.view(np.uint8).data)]


class Content:
    """The hashes of one file as far as it has been read, and what is wrong with it.

    Parameters
    ----------
    file : DataFile
        The file.
    """

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._hashes = [hashlib.sha256() for _ in file.spans]
        self._table = block_checksum(b"", file_seed=file.seed, block=TABLE_BLOCK)
        self._stored_table = 0
        self._wrong: list[tuple[int, int, int, int]] = []  # first block, end, and the first one's checksums
        self._unreadable: list[Damage] = []
        self._whole = [True, True]  # whether all of the file, and of its side file, could be read

    def add(self, chunk: Chunk, failures: Mapping[int, Exception]) -> None:
        """Take the next blocks, on any thread, without the interpreter where it matters.

        Parameters
        ----------
        chunk : Chunk
            Filled as its ranges say.
        failures : mapping of int to exception
            The ranges of it that could not be read.
        """
        for number, error in failures.items():
            self._whole[number] = False
            if not isinstance(error, (MissingFileError, ShortReadError)):  # which the size told
                places = [(self._file.path, chunk.offset, chunk.data.nbytes)]
                places += [(self._file.side, 4 * chunk.first, chunk.stored.nbytes)]
                path, offset, length = places[number]
                self._unreadable.append(
                    Damage(path, _reason(error), self._file.shard, offset, length, layer=self._file.layer)
                )
        blocks = chunk.stored[: len(chunk.found)]
        if 1 not in failures:
            self._table = crc32c(blocks, self._table)
            if chunk.is_last:
                self._stored_table = int(chunk.stored[-1])
        if 0 in failures:
            return
        for span, sha256 in zip(self._file.spans, self._hashes, strict=True):
            low = max(span.start - chunk.offset, 0)
            high = min(span.start + span.length - chunk.offset, len(chunk.data))
            if low < high:
                sha256.update(chunk.data[low:high].data)
        if 1 not in failures:
            block_checksums(
                chunk.data,
                file_seed=self._file.seed,
                first_block=chunk.first,
                block_bytes=BLOCK_BYTES,
                out=chunk.found,
            )
            if chunk.found.tobytes() != blocks.tobytes():
                for i in np.flatnonzero(chunk.found != blocks).tolist():
                    self._add_wrong(chunk.first + i, int(blocks[i]), int(chunk.found[i]))

    @property
    def has_wrong_blocks(self) -> bool:
        """Whether blocks are damaged, as far as they have been read, by checksums that are right themselves."""
        return bool(self._wrong) and not self._has_bad_table

    def finish(self, *, is_proven: bool = False) -> Iterator[Damage]:
        """Yield what is wrong with the file and its side file, all but their sizes.

        Parameters
        ----------
        is_proven : bool, default False
            Whether all bytes of the file are known to be right otherwise.
        """
        file = self._file
        yield from self._unreadable
        bad_table = self._has_bad_table
        if bad_table:
            reason = "its table of checksums was changed, or is of another file"
            differ = (f"{self._stored_table:#010x}", f"{self._table:#010x}")
            yield Damage(file.side, reason, file.shard, 0, 4 * file.num_blocks, *differ, file.layer)
        if not self._whole[0]:
            yield from self._wrong_blocks()
            return
        bad_spans = [
            (span, sha256.hexdigest())
            for span, sha256 in zip(file.spans, self._hashes, strict=True)
            if sha256.hexdigest() != span.sha256
        ]
        all_hashed = is_proven or any(span.length == file.num_bytes for span in file.spans)
        if bad_spans or not bad_table or not all_hashed:  # else the checksums are wrong, and the blocks are right
            yield from self._wrong_blocks()
        for span, found in bad_spans:
            first_block, end_block = span.start // BLOCK_BYTES, -(-(span.start + span.length) // BLOCK_BYTES)
            if not any(first < end_block and end > first_block for first, end, _, _ in self._wrong):
                reason = "its SHA-256 differs, though no checksum of its blocks does: it was exchanged or rewritten"
                yield Damage(file.path, reason, span.shard, span.start, span.length, span.sha256, found)

    @property
    def _has_bad_table(self) -> bool:
        return self._whole[1] and self._table != self._stored_table

    def _wrong_blocks(self) -> Iterator[Damage]:
        for first, end, stored, found in self._wrong:
            offset = first * BLOCK_BYTES
            length = min(end * BLOCK_BYTES, self._file.num_bytes) - offset
            reason = "damaged: the checksum of the first of these blocks differs"
            shard = next((span.shard for span in reversed(self._file.spans) if span.start <= offset), self._file.shard)
            differ = (f"{stored:#010x}", f"{found:#010x}")
            yield Damage(self._file.path, reason, shard, offset, length, *differ, self._file.layer)

    def _add_wrong(self, block: int, stored: int, found: int) -> None:
        if self._wrong and self._wrong[-1][1] == block:
            first, _, stored, found = self._wrong[-1]
            self._wrong[-1] = (first, block + 1, stored, found)
        elif len(self._wrong) < MOST_DAMAGES:
            self._wrong.append((block, block + 1, stored, found))


def _reason(error: Exception) -> str:
    return str(error.__cause__.strerror) if isinstance(error.__cause__, OSError) else str(error)
