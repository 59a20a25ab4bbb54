"""The manifest of a dataset: what it holds, in which files, and the fingerprint of its content."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from guideloom.errors import ManifestError, UnsafePathError
from guideloom.formats.schema import Schema
from guideloom.storage.metadata import decode_metadata, encode_metadata
from guideloom.storage.names import check_name
from guideloom.storage.records import (
    MAX_COUNT,
    MAX_MANIFEST_BYTES,
    MAX_REASON,
    FileEntry,
    ManifestRecord,
    ShardEntry,
    ShardRecord,
    decode_record,
    encode_record,
    group_records,
)

__all__ = [
    "MANIFEST_NAME",
    "MAX_MANIFEST_BYTES",
    "SNAPSHOTS_FOLDER",
    "FileEntry",
    "Manifest",
    "ShardEntry",
    "check_manifest",
    "encode_manifest",
    "encode_shard",
    "load_manifest",
    "snapshot_name",
]

MANIFEST_NAME = "guideloom.json"
SNAPSHOTS_FOLDER = "snapshots"

_HEXADECIMAL = re.compile("[0-9a-f]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """One snapshot of a dataset. It checks itself on creation, so that each number in it fits all the others.

    Parameters
    ----------
    schema : Schema
        The row of the dataset: those of its column groups, side by side.
    groups : tuple of Schema
        The rows of each column group as they lie in its files, offsets from the start of that row.
    shards : tuple of ShardEntry
        In the order of the stream.
    snapshot : int
        Number of the snapshot; 0 is a dataset that nothing was committed to.
    metadata : dict
        The user's own, plain JSON.

    Attributes
    ----------
    kind : str
        ``"stream"``.
    fingerprint : str
        ``"sha256:"`` and the hash of schema, groups and content. Names, seeds, snapshot and metadata are not in it.

    Raises
    ------
    ManifestError
        If the parts contradict each other.
    UnsafePathError
        If a file name could lead out of the dataset.
    """

    schema: Schema
    groups: tuple[Schema, ...]
    shards: tuple[ShardEntry, ...]
    snapshot: int
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = dataclasses.field(init=False, default="stream")
    fingerprint: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        check_manifest(self)
        object.__setattr__(self, "fingerprint", _fingerprint(self))

    @property
    def num_rows(self) -> int:
        """Rows in all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows in all shards."""
        return self.num_rows * self.schema.row_bytes


def load_manifest(data: bytes, *, path: str) -> Manifest:
    """Return the manifest that `data` holds.

    Parameters
    ----------
    data : bytes
        A whole ``guideloom.json``, at most 64 MiB. It may be hostile: nothing is allocated from a number in it.
    path : str
        Where the data come from, for messages.

    Raises
    ------
    ManifestError
        If `data` are not a manifest, of a later version, or contradict themselves; the message names the place.
    UnsafePathError
        If a file name could lead out of the dataset.
    """
    record = decode_record(data, ManifestRecord, path=path)
    try:
        schema, groups = _schemas(record)
        metadata = decode_metadata(memoryview(record.metadata))
        manifest = Manifest(schema, groups, record.shards, record.snapshot, metadata)
        if manifest.fingerprint != record.fingerprint:
            raise ManifestError(
                f"fingerprint is {record.fingerprint!r}, but that of the schema and shards named is "
                f"{manifest.fingerprint!r}: the manifest was changed"
            )
    except UnsafePathError as error:
        raise UnsafePathError(f"{path}: {error}", path=path, **error.details) from error
    except (TypeError, ValueError) as error:  # ManifestError is a ValueError
        raise ManifestError(f"{path}: {str(error)[:MAX_REASON]}", path=path) from error
    return manifest


def snapshot_name(snapshot: int) -> str:
    """Return the name of a snapshot's manifest, relative to the dataset."""
    return f"{SNAPSHOTS_FOLDER}/{snapshot}/{MANIFEST_NAME}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as ``guideloom.json`` holds it.

    Raises
    ------
    ManifestError
        If it is longer than 64 MiB.
    """
    record = ManifestRecord(
        format="guideloom",
        version=0,
        requires=(),
        kind="stream",
        snapshot=manifest.snapshot,
        fingerprint=manifest.fingerprint,
        schema=manifest.schema.record,
        block_bytes=4096,
        groups=group_records(manifest.groups),
        shards=manifest.shards,
        metadata=msgspec.Raw(encode_metadata(manifest.metadata)),
    )
    data = encode_record(record)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(
            f"the manifest of {len(manifest.shards)} shards takes {len(data)} bytes, more than {MAX_MANIFEST_BYTES}; "
            "write fewer, larger shards"
        )
    return data


def encode_shard(schema: Schema, groups: tuple[Schema, ...], shard: ShardEntry) -> bytes:
    """Return the shard manifest of `shard`."""
    record = ShardRecord(
        format="guideloom-shard",
        version=0,
        requires=(),
        kind="stream",
        schema=schema.record,
        block_bytes=4096,
        groups=group_records(groups),
        shard=shard,
    )
    return encode_record(record)


def check_manifest(manifest: Manifest) -> None:
    """Hold every number of a manifest against every other.

    Raises
    ------
    ManifestError
        If the groups do not divide the schema, the shards are not in order, lack a file or hold more rows than it has
        bytes, two files lie over each other, or a sum does not fit in 63 bits; the message names the place.
    UnsafePathError
        If a file name could lead out of the dataset.
    """
    if not 0 <= manifest.snapshot <= MAX_COUNT:
        raise ManifestError(f"snapshot is {manifest.snapshot}, which is no number of a snapshot")
    _check_groups(manifest.schema, manifest.groups)
    row_bytes = [group.row_bytes for group in manifest.groups]
    previous = -1
    for index, shard in enumerate(manifest.shards):
        if shard.number <= previous:
            raise ManifestError(f"shards[{index}].number is {shard.number}, after {previous}; numbers must increase")
        previous = shard.number
        if len(shard.files) != len(row_bytes):
            raise ManifestError(f"shards[{index}] has {len(shard.files)} files for {len(row_bytes)} column groups")
        for position, entry in enumerate(shard.files):
            if entry.byte_offset + shard.rows * row_bytes[position] > entry.bytes:
                raise ManifestError(
                    f"shards[{index}].files[{position}] has {entry.bytes} bytes, too few for {shard.rows} rows of "
                    f"{row_bytes[position]} bytes from byte {entry.byte_offset}"
                )
            try:
                check_name(entry.file)
                check_name(entry.checksums)
            except UnsafePathError as error:
                place = f"shards[{index}].files[{position}]"
                raise UnsafePathError(f"{place}: {error}", **error.details) from error
    if manifest.num_bytes > MAX_COUNT:
        raise ManifestError(f"the shards hold {manifest.num_bytes} bytes in all, more than fit in 63 bits")
    _check_hashes(manifest.shards)
    _check_files(manifest)


def _check_groups(schema: Schema, groups: tuple[Schema, ...]) -> None:
    if groups != _divide(schema, [(group.names, group.row_bytes) for group in groups]):
        raise ManifestError("the column groups lay their fields out otherwise than the schema")


def _divide(schema: Schema, groups: Sequence[tuple[tuple[str, ...], int]]) -> tuple[Schema, ...]:
    """Cut the row of `schema` into the rows of its column groups, which lie side by side in it."""
    named = [name for names, _ in groups for name in names]
    if sorted(named) != sorted(schema.names):
        raise ManifestError(f"the column groups hold the fields {named}, and the schema {list(schema.names)}")
    parts, base = [], 0
    for index, (names, row_bytes) in enumerate(groups):
        try:
            parts.append(schema.part(names, base=base, row_bytes=row_bytes))
        except ValueError as error:
            raise ManifestError(f"groups[{index}]: {error}") from error
        base += row_bytes
    if base != schema.row_bytes:
        raise ManifestError(
            f"the rows of the column groups have {base} bytes, and that of the schema {schema.row_bytes}"
        )
    return tuple(parts)


def _check_hashes(shards: tuple[ShardEntry, ...]) -> None:
    hashes = [entry.sha256 for shard in shards for entry in shard.files]
    if _HEXADECIMAL.fullmatch("".join(hashes)) and all(len(digest) == 64 for digest in hashes):
        return
    bad = next(digest for digest in hashes if len(digest) != 64 or not _HEXADECIMAL.fullmatch(digest))
    raise ManifestError(f"{bad!r} is not a SHA-256 in lower-case hexadecimal")


def _check_files(manifest: Manifest) -> None:
    """See that shards that share a file, as adopted ones may, agree about it and do not share its bytes."""
    named = [entry.file for shard in manifest.shards for entry in shard.files]
    if len(set(named)) == len(named):
        return
    uses = [
        (entry.file, entry.byte_offset, shard.rows * group.row_bytes, entry)
        for shard in manifest.shards
        for group, entry in zip(manifest.groups, shard.files, strict=True)
    ]
    uses.sort(key=lambda use: use[:3])
    for (file, start, length, entry), (next_file, next_start, _, following) in itertools.pairwise(uses):
        if file != next_file:
            continue
        if (entry.bytes, entry.checksums, entry.checksum_seed) != (
            following.bytes,
            following.checksums,
            following.checksum_seed,
        ):
            raise ManifestError(f"two shards describe the file {file!r} differently")
        if start + length > next_start:
            raise ManifestError(f"two shards overlap in the file {file!r}, at byte {next_start}")


def _schemas(record: ManifestRecord | ShardRecord) -> tuple[Schema, tuple[Schema, ...]]:
    schema = Schema.from_record(record.schema)
    return schema, _divide(schema, [(group.fields, group.row_bytes) for group in record.groups])


def _fingerprint(manifest: Manifest) -> str:
    """Hash a text of one line per fact, which any tool can write again; the format page of the docs spells it out."""
    lines = ["guideloom stream", f"row {manifest.schema.row_bytes}"]
    lines += [
        f"field {_quoted(field.name)} {field.dtype.str} {list(field.shape)} {field.offset}"
        for field in manifest.schema.fields
    ]
    lines += [f"group {group.row_bytes} {' '.join(_quoted(name) for name in group.names)}" for group in manifest.groups]
    for shard in manifest.shards:
        lines.append(f"shard {shard.rows} {' '.join([entry.sha256 for entry in shard.files])}")
    text = "\n".join(lines) + "\n"
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _quoted(name: str) -> str:
    return msgspec.json.encode(name).decode()
