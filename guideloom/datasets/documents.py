"""Documents by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guideloom.backends.base import ReadBackend
from guideloom.datasets.document_reader import Column, DocumentReader
from guideloom.datasets.readers import AsyncReader, SyncReader
from guideloom.datasets.selection import Fields, Output, select
from guideloom.errors import ManifestError
from guideloom.formats.encoding import Encoding, NumericEncoding, find
from guideloom.storage.document_manifest import DocumentManifest


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DocumentDataset:
    """Documents of a dataset, over all its shards; each sample is one whole document.

    A sample of numeric documents is a dict of str to array, and a batch of them a dict of str to `Jagged`; with other
    encodings a sample is the decoded value, and a batch a list of these. Made by `guideloom.open_dataset`; holds no
    open file, thread or loop, and pickles to its location and options.

    Parameters
    ----------
    backend : ReadBackend
        Where the dataset lies.
    manifest : DocumentManifest
        What it holds.
    location : str
        How to call it in messages.
    fields : None, sequence of str, or mapping of str to dtype
        The fields of numeric documents to deliver.
    encoding : Encoding, optional
        What makes values of documents, in place of the registered one that the manifest names.

    Raises
    ------
    UnknownEncodingError
        If the encoding that the manifest names is not registered, and no other is given.
    ManifestError
        If the encoding and the manifest contradict each other.
    ValueError
        If a field does not exist, or documents without fields are asked for some.
    """

    backend: ReadBackend
    manifest: DocumentManifest
    location: str
    fields: Fields = None
    encoding: Encoding | None = None
    outputs: tuple[Output, ...] = field(init=False)
    decoder: Encoding = field(init=False)

    def __post_init__(self) -> None:
        manifest = self.manifest
        decoder = self.encoding
        if decoder is None:
            try:
                decoder = find(manifest.encoding.name, manifest.encoding.options)
            except ValueError as error:
                raise ManifestError(f"{self.location}: {error}", path=self.location) from error
        object.__setattr__(self, "decoder", decoder)
        outputs: tuple[Output, ...] = ()
        if isinstance(decoder, NumericEncoding):
            if tuple(decoder.sections) != manifest.sections:
                raise ManifestError(
                    f"{self.location} holds documents of the sections {[str(s.dtype) for s in manifest.sections]}, and "
                    f"the encoding {decoder.name!r} reads {[str(s.dtype) for s in decoder.sections]}",
                    path=self.location,
                )
            outputs = select((item for section in manifest.sections for item in section.fields), self.fields)
        elif self.fields is not None:
            raise ValueError(f"fields are those of numeric documents; these are of the encoding {decoder.name!r}")
        object.__setattr__(self, "outputs", outputs)

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.manifest.num_documents

    def __repr__(self) -> str:
        manifest = self.manifest
        fields = ", ".join(f"{output.name} {output.dtype}" for output in self.outputs)
        packed = f", {manifest.compression}" if manifest.compression else ""
        return (
            f"DocumentDataset({self.location!r})\n"
            f"  {self.decoder.name}{packed}{f': {fields}' if fields else ''}\n"
            f"  {len(self):,} documents of {manifest.num_bytes:,} bytes in {len(manifest.shards):,} shards, "
            f"snapshot {manifest.snapshot}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        from guideloom.datasets.opening import reopen

        options = {"fields": self.fields, "encoding": self.encoding}
        return reopen, (self.backend, self.location, self.manifest.snapshot, self.manifest.fingerprint, options)

    @property
    def fingerprint(self) -> str:
        """Hash of encoding and content; the same for the same documents, however they were written."""
        return self.manifest.fingerprint

    @property
    def geometry(self) -> tuple[int, int, int]:
        """Zeros: samples are no windows."""
        return 0, 0, 0

    def async_reader(self) -> AsyncReader[Any, Any]:
        """Return a reader for use inside an event loop, with ``async with``."""
        return AsyncReader(self)

    def sync_reader(self) -> SyncReader[Any, Any]:
        """Return a reader for use without an event loop, with ``with``."""
        return SyncReader(self)

    def with_fields(self, fields: Fields) -> DocumentDataset:
        """Return the same documents with other fields, or other dtypes."""
        return DocumentDataset(self.backend, self.manifest, self.location, fields, self.encoding)

    def slice_reader(self) -> DocumentReader:
        """Return a reader of whole slices of batches; the backend must be open."""
        places = {
            item.name: (number, item.offset)
            for number, section in enumerate(self.manifest.sections)
            for item in section.fields
        }
        columns = [Column(output, *places[output.name]) for output in self.outputs]
        return DocumentReader(self.backend, self.manifest, self.decoder, columns, self.location)

    def why_empty(self) -> str:
        """Say why there is no document."""
        return f"{self.location} holds no documents"

    def requested_dtype(self, output: Output) -> bool:
        """Return whether the caller chose the dtype of an output."""
        return isinstance(self.fields, Mapping) and self.fields[output.name] is not None
