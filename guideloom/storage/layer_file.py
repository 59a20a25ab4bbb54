"""The files of one annotation layer of one shard, as they grow: the rows of its spans, and their payloads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from guideloom._typing import Int64Array, UInt8Array
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.durable import NewFile
from guideloom.storage.names import CHECKSUMS_SUFFIX, PAYLOADS_SUFFIX, SHARDS_FOLDER, SPANS_SUFFIX, new_stem, seed_of
from guideloom.storage.records import LayerEntry
from guideloom.storage.span_table import SpanTable

_BUFFER_BYTES = 1024 * 1024


class LayerFile:
    """Spans of one layer, gathered and written a mebibyte at a time.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.

    Attributes
    ----------
    stem : str
        Name of the files, unique, without suffix.
    """

    def __init__(self, root: Path, number: int) -> None:
        self.stem = new_stem(number)
        self._folder = root / SHARDS_FOLDER
        self._seed = seed_of(self.stem)
        self._table = SpanTable(file_seed=self._seed)
        self._checksums = BlockChecksums(file_seed=self._seed)
        self._sha256 = hashlib.sha256()
        self._columns: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        self._payload = bytearray()
        self._waiting = 0  # spans in the lists
        self._files = [NewFile(self._folder / (self.stem + SPANS_SUFFIX))]
        try:
            self._files.append(NewFile(self._folder / (self.stem + PAYLOADS_SUFFIX)))
        except BaseException:
            self.remove()
            raise

    def append(self, start: Int64Array, end: Int64Array, payload: UInt8Array, payload_bytes: Int64Array) -> None:
        """Append spans that `check_spans` found right.

        Parameters
        ----------
        start, end, payload_bytes : int64 array of shape (n,)
            Elements of the shard, and bytes of each payload.
        payload : uint8 array
            The payloads, back to back.

        Raises
        ------
        WriteError
            If the files could not be written; they are gone.
        ValueError
            If there are more spans than a layer of one shard can have.
        """
        self._columns.append((start, end, payload_bytes))
        self._payload += payload.data
        self._waiting += len(start)
        if 16 * self._waiting + len(self._payload) >= _BUFFER_BYTES:
            self._flush()

    def publish(self, num_elements: int) -> LayerEntry:
        """Give the files their names, durably once their folder is synced.

        Parameters
        ----------
        num_elements : int
            Elements of the shard.

        Raises
        ------
        WriteError
            If a step failed.
        """
        self._flush()
        block_elements, index = self._table.finish(num_elements)
        self._write_rows(index.view(np.uint8))
        side = NewFile(self._folder / (self.stem + CHECKSUMS_SUFFIX))
        self._files.append(side)
        side.write(self._checksums.finish())
        for file in self._files:
            file.publish()
        name = f"{SHARDS_FOLDER}/{self.stem}"
        return LayerEntry(
            file=name + SPANS_SUFFIX,
            spans=self._table.num_spans,
            block_elements=block_elements,
            sha256=self._table.content_hash(),
            checksums=name + CHECKSUMS_SUFFIX,
            checksum_seed=self._seed,
            payloads=name + PAYLOADS_SUFFIX,
            payload_bytes=self._table.payload_bytes,
            payload_sha256=self._sha256.hexdigest(),
        )

    def remove(self) -> None:
        """Remove what was written, whether it took its name or not. No manifest may name it."""
        for file in self._files:
            file.remove()

    def _flush(self) -> None:
        if not self._waiting:
            return
        start, end, payload_bytes = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        payload = np.frombuffer(self._payload, np.uint8)
        self._write_rows(self._table.append(start, end, payload, payload_bytes).view(np.uint8))
        self._sha256.update(payload.data)
        self._files[1].write(payload.data)
        self._columns, self._payload, self._waiting = [], bytearray(), 0

    def _write_rows(self, rows: UInt8Array) -> None:
        self._checksums.update(rows)
        self._files[0].write(rows.data)
