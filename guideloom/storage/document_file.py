"""The two files of one shard of documents, as they grow: the documents back to back, and a row of index for each."""

import hashlib
from pathlib import Path

import numpy as np

from guideloom._speedups.documents import document_checksums, row_checksums
from guideloom._typing import Int64Array, UInt8Array
from guideloom.storage.document_manifest import index_dtype, index_name
from guideloom.storage.durable import NewFile
from guideloom.storage.names import DATA_SUFFIX, SHARDS_FOLDER, new_stem, seed_of
from guideloom.storage.records import DocumentShardEntry, StoredFile

# Of a row of the index, what is content; both checksums, which depend on the files' ids, are not.
_CHECKSUM_BYTES = 8


class DocumentFiles:
    """Documents of one shard and their index.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.
    num_sections : int
        Arrays that a numeric document consists of; 0 for others.

    Attributes
    ----------
    stem : str
        Name of the files, unique, without suffix.
    documents : int
        Documents so far.
    """

    def __init__(self, root: Path, number: int, num_sections: int) -> None:
        self.stem = new_stem(number)
        self.documents = 0
        self._number = number
        self._dtype = index_dtype(num_sections)
        self._end = 0
        self._decoded_bytes = 0
        self._data_hash, self._index_hash = hashlib.sha256(), hashlib.sha256()
        self._index_name = index_name(self.stem)
        self._data = NewFile(root / SHARDS_FOLDER / (self.stem + DATA_SUFFIX))
        try:
            self._index = NewFile(root / self._index_name)
        except BaseException:
            self._data.remove()
            raise

    def append(self, data: UInt8Array, lengths: Int64Array, decoded_bytes: Int64Array, counts: Int64Array) -> None:
        """Append documents.

        Parameters
        ----------
        data : uint8 array
            Their bytes as stored, back to back.
        lengths, decoded_bytes : int64 array of shape (n,)
            Bytes of each, as stored and before compression; at most 2**31 - 1.
        counts : int64 array of shape (n, num_sections)
            Elements of each array of each.

        Raises
        ------
        WriteError
            If the files could not be written; they are gone.
        """
        ends = np.cumsum(lengths)
        rows = np.zeros(len(lengths), self._dtype)
        rows["end"] = ends + self._end
        rows["decoded_bytes"] = decoded_bytes
        rows["counts"] = counts
        checksums = np.empty(len(rows), np.uint32)
        document_checksums(data, ends, file_seed=seed_of(self.stem), first=self.documents, out=checksums)
        rows["checksum"] = checksums
        raw = rows.view(np.uint8).reshape(len(rows), self._dtype.itemsize)
        row_checksums(raw, file_seed=seed_of(self.stem, 1), first=self.documents, out=checksums)
        rows["row_checksum"] = checksums
        self._data_hash.update(data.data)
        self._index_hash.update(np.ascontiguousarray(raw[:, :-_CHECKSUM_BYTES]).data)
        self._data.write(data.data)
        self._index.write(raw.reshape(-1).data)
        self._end += int(lengths.sum())
        self._decoded_bytes += int(decoded_bytes.sum())
        self.documents += len(rows)

    def publish(self) -> DocumentShardEntry:
        """Give both files their names, durably once their folder is synced.

        Raises
        ------
        WriteError
            If a step failed.
        """
        self._data.publish()
        self._index.publish()
        return DocumentShardEntry(
            number=self._number,
            documents=self.documents,
            decoded_bytes=self._decoded_bytes,
            data=StoredFile(
                file=f"{SHARDS_FOLDER}/{self.stem}{DATA_SUFFIX}",
                bytes=self._end,
                sha256=self._data_hash.hexdigest(),
                checksum_seed=seed_of(self.stem),
            ),
            index=StoredFile(
                file=self._index_name,
                bytes=self.documents * self._dtype.itemsize,
                sha256=self._index_hash.hexdigest(),
                checksum_seed=seed_of(self.stem, 1),
            ),
        )

    def remove(self) -> None:
        """Remove what was written, whether it took its name or not. No shard manifest may name it."""
        self._data.remove()
        self._index.remove()
