"""The manifest of documents: how they are encoded, and the two files of each shard."""

import dataclasses
import hashlib
import itertools
import os
from typing import Any, ClassVar

import msgspec
import numpy as np

from guideloom.errors import ManifestError, ShardError
from guideloom.formats.encoding import Encoding, check_encoding_name, sections_of
from guideloom.formats.schema import MAX_FIELDS, Schema
from guideloom.storage.manifest import (
    Manifest,
    check_hashes,
    check_names,
    check_numbers,
    check_snapshot,
    quoted,
    translated,
)
from guideloom.storage.metadata import decode_metadata, encode_metadata
from guideloom.storage.names import DATA_SUFFIX, INDEX_SUFFIX, SHARD_SUFFIX, SHARDS_FOLDER, seed_of, shard_of
from guideloom.storage.records import (
    MAX_COUNT,
    Compression,
    DocumentShardEntry,
    DocumentsRecord,
    DocumentsShardRecord,
    EncodingRecord,
    decode_record,
    encode_record,
)

# A document's size, before and after compression, and its elements are 32-bit numbers in the index.
MAX_DOCUMENT_BYTES = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentManifest(Manifest):
    """One snapshot of a dataset of documents.

    Parameters
    ----------
    encoding : EncodingRecord
        What makes values of the stored bytes.
    sections : tuple of Schema
        For numeric documents, the arrays that one consists of, back to back: the rows of each. Else none.
    compression : None or "zstd"
        Of each document on its own.
    shards : tuple of DocumentShardEntry
        In the order of their numbers.
    snapshot : int
        Number of the snapshot; 0 is a dataset that nothing was committed to.
    metadata : dict
        The user's own, plain JSON.

    Raises
    ------
    ManifestError
        If the parts contradict each other.
    UnsafePathError
        If a file name could lead out of the dataset.
    """

    encoding: EncodingRecord
    sections: tuple[Schema, ...]
    compression: Compression
    shards: tuple[DocumentShardEntry, ...]
    snapshot: int
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: ClassVar[str] = "documents"
    fingerprint: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "fingerprint", _fingerprint(self))

    @classmethod
    def from_record(cls, record: DocumentsRecord, *, path: str) -> "DocumentManifest":
        """Return the manifest that a record describes. Raises as `load_manifest` does."""
        try:
            if len(record.sections) > MAX_FIELDS:
                raise ManifestError(f"{len(record.sections)} sections are more than {MAX_FIELDS}")
            sections = tuple(map(Schema.from_record, record.sections))
            metadata = decode_metadata(memoryview(record.metadata))
            return cls(record.encoding, sections, record.compression, record.shards, record.snapshot, metadata)
        except (TypeError, ValueError) as error:  # ManifestError is a ValueError
            raise translated(error, path) from error

    @property
    def num_documents(self) -> int:
        """Documents in all shards."""
        return sum(shard.documents for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of the documents in all shards, as stored."""
        return sum(shard.data.bytes for shard in self.shards)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the documents in all shards, before compression."""
        return sum(shard.decoded_bytes for shard in self.shards)

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """A row of the index."""
        return index_dtype(len(self.sections))

    @property
    def record(self) -> DocumentsRecord:
        """The manifest as ``guideloom.json`` writes it."""
        return DocumentsRecord(
            format="guideloom",
            version=0,
            requires=(),
            kind="documents",
            snapshot=self.snapshot,
            fingerprint=self.fingerprint,
            encoding=self.encoding,
            sections=tuple(section.record for section in self.sections),
            compression=self.compression,
            shards=self.shards,
            metadata=msgspec.Raw(encode_metadata(self.metadata)),
        )

    def with_shards(self, shards: tuple[DocumentShardEntry, ...]) -> "DocumentManifest":
        """Return the next snapshot, with these shards."""
        return dataclasses.replace(self, shards=shards, snapshot=self.snapshot + 1)

    def shard_record(self, shard: DocumentShardEntry) -> bytes:
        """Return the shard manifest of `shard`."""
        record = DocumentsShardRecord(
            format="guideloom-shard",
            version=0,
            requires=(),
            kind="documents",
            encoding=self.encoding,
            sections=tuple(section.record for section in self.sections),
            compression=self.compression,
            shard=shard,
        )
        return encode_record(record)

    def files_of(self, shard: DocumentShardEntry) -> list[tuple[str, int]]:
        """Return the names of all files of one of the shards, with their sizes."""
        return [(file.file, file.bytes) for file in (shard.data, shard.index)]

    def read_shard(self, data: bytes, *, path: str) -> tuple[DocumentShardEntry, list[tuple[str, int]]]:
        """Return the shard that a shard manifest describes, and its files with their sizes; see `Manifest`."""
        record = decode_record(data, DocumentsShardRecord, path=path)
        shard = record.shard
        here = self.record
        found = record.encoding, record.sections, record.compression
        if found != (here.encoding, here.sections, here.compression):
            raise ShardError(
                f"{path} holds documents of {found}, and the dataset those of "
                f"{here.encoding, here.sections, here.compression}; remove the file, and write the shard again",
                shards=[shard.number],
            )
        stem = os.path.basename(path).removesuffix(SHARD_SUFFIX)
        expected = [(f"{SHARDS_FOLDER}/{stem}{DATA_SUFFIX}", seed_of(stem)), (index_name(stem), seed_of(stem, 1))]
        stored = [(file.file, file.checksum_seed) for file in (shard.data, shard.index)]
        if shard_of(stem) != shard.number or stored != expected:
            raise ManifestError(f"{path} does not describe the shard it is named for; remove it", path=path)
        return shard, self.files_of(shard)


def index_dtype(num_sections: int) -> np.dtype[Any]:
    """Return the row of an index: content first, then the checksums of the document and of the row."""
    fields = [("end", "<u8"), ("decoded_bytes", "<u4"), ("counts", "<u4", (num_sections,))]
    return np.dtype([*fields, ("checksum", "<u4"), ("row_checksum", "<u4")])


def index_name(stem: str) -> str:
    """Return the name of the index of the shard that a writer named `stem`."""
    return f"{SHARDS_FOLDER}/{stem}{INDEX_SUFFIX}"


def record_of(encoding: Encoding) -> tuple[EncodingRecord, tuple[Schema, ...]]:
    """Return what a manifest keeps of an encoding: its record, and the sections of a numeric one."""
    return EncodingRecord(encoding.name, dict(encoding.options)), sections_of(encoding)


def _check(manifest: DocumentManifest) -> None:
    check_snapshot(manifest.snapshot)
    check_encoding_name(manifest.encoding.name)
    encode_metadata(manifest.encoding.options)
    check_numbers(manifest.shards)
    row_bytes = manifest.index_dtype.itemsize
    for index, shard in enumerate(manifest.shards):
        if shard.documents * row_bytes != shard.index.bytes:
            raise ManifestError(
                f"shards[{index}].index has {shard.index.bytes} bytes; {shard.documents} rows of {row_bytes} bytes "
                f"take {shard.documents * row_bytes}"
            )
        if manifest.compression is None and shard.decoded_bytes != shard.data.bytes:
            raise ManifestError(
                f"shards[{index}].data has {shard.data.bytes} bytes, but its documents have {shard.decoded_bytes}"
            )
        check_names((shard.data.file, shard.index.file), place=f"shards[{index}]")
    for total in (manifest.num_documents, manifest.num_bytes, manifest.decoded_bytes):
        if total > MAX_COUNT:
            raise ManifestError(f"the shards hold {total} bytes or documents in all, more than fit in 63 bits")
    files = [file for shard in manifest.shards for file in (shard.data, shard.index)]
    check_hashes([file.sha256 for file in files])
    names = sorted(file.file for file in files)
    for name, following in itertools.pairwise(names):
        if name == following:
            raise ManifestError(f"two shards name the file {name!r}")


def _fingerprint(manifest: DocumentManifest) -> str:
    """Hash a text of one line per fact, which any tool can write again; the format page of the docs spells it out."""
    options = msgspec.json.encode(manifest.encoding.options, order="deterministic").decode()
    lines = ["guideloom documents", f"encoding {quoted(manifest.encoding.name)} {options}"]
    for section in manifest.sections:
        lines.append(f"section {section.row_bytes}")
        lines += [
            f"field {quoted(field.name)} {field.dtype.str} {list(field.shape)} {field.offset}"
            for field in section.fields
        ]
    lines.append(f"compression {manifest.compression or 'none'}")
    for shard in manifest.shards:
        lines.append(f"shard {shard.documents} {shard.data.sha256} {shard.index.sha256}")
    text = "\n".join(lines) + "\n"
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
