"""What a manifest and a shard manifest look like in JSON, and their strict decoding."""

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from guideloom.errors import ManifestError
from guideloom.formats.schema import Schema, SchemaRecord
from guideloom.storage.metadata import check_unique_keys

FORMAT_VERSION = 0
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
MAX_COUNT = 2**63 - 1
MAX_SHARD_NUMBER = 99_999_999
MAX_REASON = 500  # characters of a message that may quote hostile data

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
ShardNumber = Annotated[int, Meta(ge=0, le=MAX_SHARD_NUMBER)]
Sha256 = Annotated[str, Meta(min_length=64, max_length=64)]
Compression: TypeAlias = Literal["zstd"] | None
_Requires = Annotated[tuple[str, ...], Meta(max_length=0)]


# Strict structs without cycles: gc=False spares the collector the tens of thousands that a large dataset has.
class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The file that holds one column group of one shard.

    Parameters
    ----------
    file : str
        Name of the file, relative to the dataset.
    byte_offset : int
        First byte of the rows in the file.
    bytes : int
        Size of the file.
    sha256 : str
        SHA-256 of the rows in hexadecimal; bytes before and after them are not in it.
    checksums : str
        Name of the side file with a checksum for each block of the file.
    checksum_seed : int
        Unsigned 32-bit seed of these checksums.
    """

    file: str
    byte_offset: Count
    bytes: Count
    sha256: Sha256
    checksums: str
    checksum_seed: Annotated[int, Meta(ge=0, le=2**32 - 1)]


class LayerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The files of one annotation layer of one shard: rows and index of its spans, and their payloads.

    Parameters
    ----------
    file : str
        Name of the file of rows and index, relative to the dataset.
    spans : int
        Spans in the shard.
    block_elements : int
        Elements from one entry of the index to the next, a power of two.
    sha256 : str
        SHA-256 of starts, lengths and payload lengths in hexadecimal.
    checksums : str
        Name of the side file with a checksum for each block of the file.
    checksum_seed : int
        Unsigned 32-bit seed of these checksums, and of those in the rows.
    payloads : str
        Name of the file of payloads.
    payload_bytes : int
        Its size.
    payload_sha256 : str
        SHA-256 of it in hexadecimal.
    """

    file: str
    spans: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    block_elements: Annotated[int, Meta(ge=1024, le=2**30)]
    sha256: Sha256
    checksums: str
    checksum_seed: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    payloads: str
    payload_bytes: Count
    payload_sha256: Sha256

    @property
    def content(self) -> tuple[object, ...]:
        """What is equal for two that hold the same."""
        return self.spans, self.sha256, self.payload_bytes, self.payload_sha256


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """One shard.

    Parameters
    ----------
    number : int
        Place of the shard in the stream, from 0.
    rows : int
        Rows in each of its files.
    files : tuple of FileEntry
        One for each column group of the dataset, in their order.
    layers : tuple of LayerEntry
        One for each annotation layer of the dataset, in their order.
    """

    number: ShardNumber
    rows: Count
    files: tuple[FileEntry, ...]
    layers: tuple[LayerEntry, ...] = ()

    @property
    def content(self) -> tuple[object, ...]:
        """What is equal for two shards that hold the same."""
        return self.rows, *(entry.sha256 for entry in self.files), *(layer.content for layer in self.layers)

    @property
    def first_file(self) -> str:
        """Name of the data file that the shard's manifest is named after."""
        return self.files[0].file

    def describe(self) -> str:
        """Return how much it holds, for messages."""
        return f"{self.rows} rows"


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One file of a shard of documents.

    Parameters
    ----------
    file : str
        Name of the file, relative to the dataset.
    bytes : int
        Size of the file.
    sha256 : str
        SHA-256 of its content in hexadecimal; of an index without its checksums.
    checksum_seed : int
        Unsigned 32-bit seed of the checksums of its records.
    """

    file: str
    bytes: Count
    sha256: Sha256
    checksum_seed: Annotated[int, Meta(ge=0, le=2**32 - 1)]


class DocumentShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One shard of documents.

    Parameters
    ----------
    number : int
        Place of the shard in the dataset, from 0.
    documents : int
        Documents in it.
    decoded_bytes : int
        Bytes of all of them, before compression.
    data, index : StoredFile
        The documents back to back, and a row for each.
    """

    number: ShardNumber
    documents: Count
    decoded_bytes: Count
    data: StoredFile
    index: StoredFile

    @property
    def content(self) -> tuple[object, ...]:
        """What is equal for two shards that hold the same."""
        return self.documents, self.data.sha256, self.index.sha256

    @property
    def first_file(self) -> str:
        """Name of the data file that the shard's manifest is named after."""
        return self.data.file

    def describe(self) -> str:
        """Return how much it holds, for messages."""
        return f"{self.documents} documents"


class EncodingRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes values of stored bytes: the name that an encoding is registered under, and its options."""

    name: str
    options: dict[str, Any]


class LayerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An annotation layer: its name, and what makes payloads of stored bytes."""

    name: str
    encoding: EncodingRecord


class GroupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column group: the fields whose rows share a file, and the bytes that they take of a row of the schema."""

    fields: tuple[str, ...]
    row_bytes: Count


class StreamRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The manifest of a stream."""

    format: Literal["guideloom"]
    version: Literal[0]
    requires: _Requires
    kind: Literal["stream"]
    snapshot: Count
    fingerprint: str
    schema: SchemaRecord
    block_bytes: Literal[4096]
    groups: tuple[GroupRecord, ...]
    layers: tuple[LayerRecord, ...] = ()
    shards: tuple[ShardEntry, ...]
    metadata: msgspec.Raw


class StreamShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The manifest of one shard of a stream, which `commit` merges into that of the dataset."""

    format: Literal["guideloom-shard"]
    version: Literal[0]
    requires: _Requires
    kind: Literal["stream"]
    schema: SchemaRecord
    block_bytes: Literal[4096]
    groups: tuple[GroupRecord, ...]
    layers: tuple[LayerRecord, ...] = ()
    shard: ShardEntry


class LayerShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of one shard of a layer that is added to a stream; it tells of the rows that the spans lie over."""

    format: Literal["guideloom-layer"]
    version: Literal[0]
    requires: _Requires
    kind: Literal["stream"]
    layer: LayerRecord
    number: ShardNumber
    stream: tuple[Sha256, ...]
    entry: LayerEntry


class DocumentsRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of a dataset of documents."""

    format: Literal["guideloom"]
    version: Literal[0]
    requires: _Requires
    kind: Literal["documents"]
    snapshot: Count
    fingerprint: str
    encoding: EncodingRecord
    sections: tuple[SchemaRecord, ...]
    compression: Compression
    shards: tuple[DocumentShardEntry, ...]
    metadata: msgspec.Raw


class DocumentsShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of one shard of documents, which `commit` merges into that of the dataset."""

    format: Literal["guideloom-shard"]
    version: Literal[0]
    requires: _Requires
    kind: Literal["documents"]
    encoding: EncodingRecord
    sections: tuple[SchemaRecord, ...]
    compression: Compression
    shard: DocumentShardEntry


class _Header(msgspec.Struct):
    """The first fields of any version, undecoded: enough to say why a manifest is not understood."""

    format: msgspec.Raw = msgspec.Raw(b"null")
    version: msgspec.Raw = msgspec.Raw(b"null")
    requires: msgspec.Raw = msgspec.Raw(b"[]")
    kind: msgspec.Raw = msgspec.Raw(b"null")


ManifestRecord: TypeAlias = StreamRecord | DocumentsRecord
ShardRecord: TypeAlias = StreamShardRecord | DocumentsShardRecord | LayerShardRecord
RecordT = TypeVar("RecordT", StreamRecord, DocumentsRecord, StreamShardRecord, DocumentsShardRecord, LayerShardRecord)

_KINDS = (b'"stream"', b'"documents"')
_FORMATS: dict[type, bytes] = {
    StreamRecord: b'"guideloom"',
    DocumentsRecord: b'"guideloom"',
    LayerShardRecord: b'"guideloom-layer"',
}
_HEADER_DECODER = msgspec.json.Decoder(_Header)


def encode_record(record: ManifestRecord | ShardRecord) -> bytes:
    """Return a record as one line of JSON."""
    return msgspec.json.encode(record) + b"\n"


def decode_manifest(data: bytes, *, path: str) -> ManifestRecord:
    """Return the record of a manifest of any kind. Raises as `decode_record` does."""
    try:
        kind = bytes(_HEADER_DECODER.decode(data).kind) if len(data) <= MAX_MANIFEST_BYTES else b""
    except (ValueError, RecursionError):
        kind = b""
    if kind == b'"documents"':
        return decode_record(data, DocumentsRecord, path=path)
    return decode_record(data, StreamRecord, path=path)  # which says what is wrong with any other


def decode_record(data: bytes, record_type: type[RecordT], *, path: str) -> RecordT:
    """Return the record that `data` holds.

    Parameters
    ----------
    data : bytes
        JSON, at most 64 MiB.
    record_type : type
        One of the records of a manifest or of a shard.
    path : str
        Where the data come from, for messages.

    Raises
    ------
    ManifestError
        If `data` are too long, no JSON, of another format or version; if they require something that is not known,
        hold an unknown key, a key twice, or a value of another type or out of its range.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{path} has {len(data)} bytes; a manifest has at most {MAX_MANIFEST_BYTES}", path=path)
    try:
        record = msgspec.json.decode(data, type=record_type)
        if encode_record(record) != data:  # not as this library writes it: msgspec keeps the last of equal keys
            check_unique_keys(data)
    except (ValueError, RecursionError) as error:
        reason = _foreign(data, record_type) or str(error)[:MAX_REASON]
        raise ManifestError(f"{path}: {reason}", path=path) from error
    return record


def group_records(groups: tuple[Schema, ...]) -> tuple[GroupRecord, ...]:
    """Return column groups as a manifest writes them."""
    return tuple(GroupRecord(group.names, group.row_bytes) for group in groups)


def _foreign(data: bytes, record_type: type[msgspec.Struct]) -> str | None:
    """Say why a manifest cannot be one that this version knows, if that is the reason."""
    try:
        header = _HEADER_DECODER.decode(data)
    except (ValueError, RecursionError):
        return None
    expected = _FORMATS.get(record_type, b'"guideloom-shard"')
    if bytes(header.format) != expected:
        return f"the format is {_excerpt(header.format)}, not {expected.decode()}: this is no manifest of GuideLoom"
    if bytes(header.version) != b"%d" % FORMAT_VERSION:
        found = _excerpt(header.version)
        return f"the format version is {found}, and this GuideLoom reads {FORMAT_VERSION}; upgrade GuideLoom"
    if bytes(header.requires) != b"[]":
        return f"it requires {_excerpt(header.requires)}, which this GuideLoom does not know; upgrade GuideLoom"
    if bytes(header.kind) not in _KINDS:
        return f"its kind is {_excerpt(header.kind)}, which this GuideLoom does not know; upgrade GuideLoom"
    return None


def _excerpt(value: msgspec.Raw) -> str:
    return bytes(memoryview(value)[:80]).decode(errors="replace")
