"""The write side of a dataset of documents."""

from pathlib import Path
from typing import Any

from guideloom._typing import PathLike
from guideloom.formats.compression import codec
from guideloom.formats.encoding import Encoding, find
from guideloom.storage.dataset import DatasetStorage
from guideloom.storage.document_manifest import DocumentManifest, record_of
from guideloom.storage.document_writer import DocumentShardWriter
from guideloom.storage.records import Compression


class DocumentStorage(DatasetStorage[DocumentManifest, DocumentShardWriter]):
    """Documents on a file system, to be written: records of any length that stay separate. Make it with `create`.

    It lies in a folder as a `StreamStorage` does, is written by any number of processes and committed in the same way;
    only the shards hold documents, of any length each, and an index.

    Attributes
    ----------
    path : Path
        Folder of the dataset.
    manifest : DocumentManifest
        The snapshot that was the newest when the storage was opened, or by its last commit.
    """

    _manifest_type = DocumentManifest

    def __init__(self, path: Path, manifest: DocumentManifest, encoding: Encoding | None = None) -> None:
        super().__init__(path, manifest)
        self._encoding = encoding

    @classmethod
    def create(
        cls,
        path: PathLike,
        *,
        encoding: Encoding,
        compression: Compression = None,
        metadata: dict[str, Any] | None = None,
    ) -> "DocumentStorage":
        """Make a dataset without shards.

        Parameters
        ----------
        path : path
            Its folder, which is made if it is missing.
        encoding : Encoding
            What makes bytes of documents, for example ``guideloom.formats.JSON()``; the manifest names it.
        compression : None or "zstd", default None
            Of each document on its own.
        metadata : dict, optional
            The user's own, plain JSON of at most 1 MiB; kept in the manifest.

        Raises
        ------
        FileExistsError
            If the folder holds a dataset.
        TypeError or ValueError
            If the encoding has no proper name, or JSON cannot hold its options or the metadata.
        ImportError
            If the package for the compression is not installed.
        WriteError
            If the system refused to write.
        """
        if not all(hasattr(encoding, name) for name in ("name", "options", "encode", "decode")):
            raise TypeError(f"encoding is what guideloom.formats has, or fulfils its Encoding, not {encoding!r:.80}")
        if compression not in (None, "zstd"):
            raise ValueError(f"compression is None or 'zstd', not {compression!r}")
        codec(compression)
        record, sections = record_of(encoding)
        manifest = DocumentManifest(record, sections, compression, (), 0, {} if metadata is None else metadata)
        storage = cls._create(path, manifest)
        storage._encoding = encoding
        return storage

    @property
    def encoding(self) -> Encoding:
        """What makes bytes of documents: as given to `create`, or as registered.

        Raises
        ------
        UnknownEncodingError
            If the dataset was opened and its encoding is not registered.
        """
        if self._encoding is None:
            self._encoding = find(self.manifest.encoding.name, self.manifest.encoding.options)
        return self._encoding

    def __repr__(self) -> str:
        manifest = self.manifest
        packed = f", {manifest.compression}" if manifest.compression else ""
        return (
            f"<DocumentStorage {str(self.path)!r}: {manifest.encoding.name}{packed}; {len(manifest.shards):,} shards, "
            f"{manifest.num_documents:,} documents, {manifest.num_bytes:,} bytes, snapshot {manifest.snapshot}>"
        )

    def _writer(self, number: int) -> DocumentShardWriter:
        return DocumentShardWriter(self.path, number, self.manifest, self.encoding)
