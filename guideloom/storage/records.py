"""What a manifest and a shard manifest look like in JSON, and their strict decoding."""

from typing import Annotated, Literal, TypeVar

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


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One shard.

    Parameters
    ----------
    number : int
        Place of the shard in the stream, from 0.
    rows : int
        Rows in each of its files.
    files : tuple of FileEntry
        One for each column group of the dataset, in their order.
    """

    number: ShardNumber
    rows: Count
    files: tuple[FileEntry, ...]


class GroupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column group: the fields whose rows share a file, and the bytes that they take of a row of the schema."""

    fields: tuple[str, ...]
    row_bytes: Count


class ManifestRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of a dataset."""

    format: Literal["guideloom"]
    version: Literal[0]
    requires: _Requires
    kind: Literal["stream"]
    snapshot: Count
    fingerprint: str
    schema: SchemaRecord
    block_bytes: Literal[4096]
    groups: tuple[GroupRecord, ...]
    shards: tuple[ShardEntry, ...]
    metadata: msgspec.Raw


class ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of one shard, which `commit` merges into that of the dataset."""

    format: Literal["guideloom-shard"]
    version: Literal[0]
    requires: _Requires
    kind: Literal["stream"]
    schema: SchemaRecord
    block_bytes: Literal[4096]
    groups: tuple[GroupRecord, ...]
    shard: ShardEntry


class _Header(msgspec.Struct):
    """The first fields of any version, undecoded: enough to say why a manifest is not understood."""

    format: msgspec.Raw = msgspec.Raw(b"null")
    version: msgspec.Raw = msgspec.Raw(b"null")
    requires: msgspec.Raw = msgspec.Raw(b"[]")
    kind: msgspec.Raw = msgspec.Raw(b"null")


RecordT = TypeVar("RecordT", ManifestRecord, ShardRecord)

_FORMATS: dict[type, bytes] = {ManifestRecord: b'"guideloom"', ShardRecord: b'"guideloom-shard"'}
_HEADER_DECODER = msgspec.json.Decoder(_Header)


def encode_record(record: ManifestRecord | ShardRecord) -> bytes:
    """Return a record as one line of JSON."""
    return msgspec.json.encode(record) + b"\n"


def decode_record(data: bytes, record_type: type[RecordT], *, path: str) -> RecordT:
    """Return the record that `data` holds.

    Parameters
    ----------
    data : bytes
        JSON, at most 64 MiB.
    record_type : type
        `ManifestRecord` or `ShardRecord`.
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
    expected = _FORMATS[record_type]
    if bytes(header.format) != expected:
        return f"the format is {_excerpt(header.format)}, not {expected.decode()}: this is no manifest of GuideLoom"
    if bytes(header.version) != b"%d" % FORMAT_VERSION:
        found = _excerpt(header.version)
        return f"the format version is {found}, and this GuideLoom reads {FORMAT_VERSION}; upgrade GuideLoom"
    if bytes(header.requires) != b"[]":
        return f"it requires {_excerpt(header.requires)}, which this GuideLoom does not know; upgrade GuideLoom"
    if bytes(header.kind) != b'"stream"':
        return f"its kind is {_excerpt(header.kind)}, which this GuideLoom does not know; upgrade GuideLoom"
    return None


def _excerpt(value: msgspec.Raw) -> str:
    return bytes(memoryview(value)[:80]).decode(errors="replace")
