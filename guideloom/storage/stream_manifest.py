"""The manifest of a token stream: schema, column groups and shards of rows."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from guideloom.errors import ManifestError, ShardError, UnsafePathError
from guideloom.formats.schema import Schema
from guideloom.storage.checksums import BLOCK_BYTES
from guideloom.storage.layer_manifest import (
    check_layers,
    fingerprint_lines,
    is_regular,
    layer_files,
    layer_shard_name,
)
from guideloom.storage.manifest import Manifest, check_hashes, check_numbers, check_snapshot, quoted, translated
from guideloom.storage.metadata import decode_metadata, encode_metadata
from guideloom.storage.names import (
    CHECKSUMS_SUFFIX,
    DATA_SUFFIX,
    SHARD_SUFFIX,
    SHARDS_FOLDER,
    check_name,
    seed_of,
    shard_of,
)
from guideloom.storage.records import (
    MAX_COUNT,
    LayerEntry,
    LayerRecord,
    ShardEntry,
    StreamRecord,
    StreamShardRecord,
    decode_record,
    encode_record,
    group_records,
)


@dataclasses.dataclass(frozen=True, slots=True)
class StreamManifest(Manifest):
    """One snapshot of a token stream.

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
    layers : tuple of LayerRecord
        The annotation layers, in the order in which they were added.

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
    layers: tuple[LayerRecord, ...] = ()
    kind: ClassVar[str] = "stream"
    fingerprint: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        check_manifest(self)
        object.__setattr__(self, "fingerprint", self.fingerprint_of(self.layer_names))

    @classmethod
    def from_record(cls, record: StreamRecord, *, path: str) -> "StreamManifest":
        """Return the manifest that a record describes. Raises as `load_manifest` does."""
        try:
            schema = Schema.from_record(record.schema)
            groups = _divide(schema, [(group.fields, group.row_bytes) for group in record.groups])
            metadata = decode_metadata(memoryview(record.metadata))
            return cls(schema, groups, record.shards, record.snapshot, metadata, record.layers)
        except (TypeError, ValueError) as error:  # ManifestError is a ValueError
            raise translated(error, path) from error

    @property
    def num_rows(self) -> int:
        """Rows in all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows in all shards."""
        return self.num_rows * self.schema.row_bytes

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The annotation layers, in the order in which they were added."""
        return tuple(layer.name for layer in self.layers)

    @property
    def record(self) -> StreamRecord:
        """The manifest as ``guideloom.json`` writes it."""
        return StreamRecord(
            format="guideloom",
            version=0,
            requires=(),
            kind="stream",
            snapshot=self.snapshot,
            fingerprint=self.fingerprint,
            schema=self.schema.record,
            block_bytes=4096,
            groups=group_records(self.groups),
            layers=self.layers,
            shards=self.shards,
            metadata=msgspec.Raw(encode_metadata(self.metadata)),
        )

    def with_shards(self, shards: tuple[ShardEntry, ...]) -> "StreamManifest":
        """Return the next snapshot, with these shards."""
        return dataclasses.replace(self, shards=shards, snapshot=self.snapshot + 1)

    def with_layer(self, layer: LayerRecord, entries: Sequence[LayerEntry]) -> "StreamManifest":
        """Return the next snapshot, with one more layer, of which there is an entry for each shard."""
        shards = tuple(
            msgspec.structs.replace(shard, layers=(*shard.layers, entry))
            for shard, entry in zip(self.shards, entries, strict=True)
        )
        layers = (*self.layers, layer)
        return dataclasses.replace(self, shards=shards, layers=layers, snapshot=self.snapshot + 1)

    def fingerprint_of(self, layers: Iterable[str]) -> str:
        """Return the fingerprint of the stream and some of its layers: of what a reader of these depends on."""
        return _fingerprint(self, set(layers))

    def files_of(self, shard: ShardEntry) -> list[tuple[str, int]]:
        """Return the names of all files of one of the shards, with their sizes."""
        files = []
        for entry in shard.files:
            num_blocks = -(-entry.bytes // BLOCK_BYTES)
            files += [(entry.file, entry.bytes), (entry.checksums, 4 * (num_blocks + 1))]
        for layer in shard.layers:
            files += layer_files(layer, shard.rows)
        return files

    def keeps(self, earlier: Manifest) -> bool:
        """Whether this snapshot has all that an earlier one has: shards may have got layers since."""
        if not isinstance(earlier, StreamManifest):
            return False
        count = len(earlier.layers)
        shards = {msgspec.structs.replace(shard, layers=shard.layers[:count]) for shard in self.shards}
        return (
            earlier.metadata == self.metadata
            and earlier.layers == self.layers[:count]
            and set(earlier.shards) <= shards
        )

    def shard_manifests_of(self, shard: ShardEntry) -> list[str]:
        """Return the names that the manifests of one of the shards have, those of its layers too."""
        return [*Manifest.shard_manifests_of(self, shard), *map(layer_shard_name, shard.layers)]

    def read_shard(self, data: bytes, *, path: str) -> tuple[ShardEntry, list[tuple[str, int]]]:
        """Return the shard that a shard manifest describes, and its files with their sizes; see `Manifest`."""
        record = decode_record(data, StreamShardRecord, path=path)
        shard = record.shard
        if record.schema != self.schema.record or record.groups != group_records(self.groups):
            raise ShardError(
                f"{path} has rows of {record.schema}, but the dataset has {self.schema.record}; remove the file, and "
                "write the shard again",
                shards=[shard.number],
            )
        if not self._is_regular(shard, path):
            raise ManifestError(f"{path} does not describe the shard it is named for; remove it", path=path)
        shard = self._with_later_layers(shard, record.layers, path)
        return shard, self.files_of(shard)

    def _with_later_layers(self, shard: ShardEntry, layers: tuple[LayerRecord, ...], path: str) -> ShardEntry:
        """Return a shard with the layers that were added to it since it was written."""
        if layers == self.layers:
            return shard
        committed = next((known for known in self.shards if known.number == shard.number), None)
        if committed is None or layers != self.layers[: len(layers)]:
            raise ShardError(
                f"{path} has the layers {[layer.name for layer in layers]}, but the dataset has "
                f"{[layer.name for layer in self.layers]}; remove the file, and write the shard again",
                shards=[shard.number],
            )
        return msgspec.structs.replace(shard, layers=(*shard.layers, *committed.layers[len(layers) :]))

    def _is_regular(self, shard: ShardEntry, path: str) -> bool:
        """Whether a shard is as a writer makes it, so that a planted manifest can claim no other files."""
        if len(shard.files) != len(self.groups):
            return False
        for index, (group, entry) in enumerate(zip(self.groups, shard.files, strict=True)):
            stem = entry.file.removeprefix(f"{SHARDS_FOLDER}/").removesuffix(DATA_SUFFIX)
            if (
                shard_of(stem) != shard.number
                or (index == 0 and stem + SHARD_SUFFIX != os.path.basename(path))
                or entry.file != f"{SHARDS_FOLDER}/{stem}{DATA_SUFFIX}"
                or entry.checksums != f"{SHARDS_FOLDER}/{stem}{CHECKSUMS_SUFFIX}"
                or entry.checksum_seed != seed_of(stem)
                or (entry.byte_offset, entry.bytes) != (0, shard.rows * group.row_bytes)
            ):
                return False
        return all(is_regular(layer, shard.number) for layer in shard.layers)


def encode_shard(
    schema: Schema, groups: tuple[Schema, ...], shard: ShardEntry, layers: tuple[LayerRecord, ...] = ()
) -> bytes:
    """Return the shard manifest of `shard`."""
    record = StreamShardRecord(
        format="guideloom-shard",
        version=0,
        requires=(),
        kind="stream",
        schema=schema.record,
        block_bytes=4096,
        groups=group_records(groups),
        layers=layers,
        shard=shard,
    )
    return encode_record(record)


def check_manifest(manifest: StreamManifest) -> None:
    """Hold every number of a manifest against every other.

    Raises
    ------
    ManifestError
        If the groups do not divide the schema, the shards are not in order, lack a file or hold more rows than it has
        bytes, two files lie over each other, or a sum does not fit in 63 bits; the message names the place.
    UnsafePathError
        If a file name could lead out of the dataset.
    """
    check_snapshot(manifest.snapshot)
    check_numbers(manifest.shards)
    _check_groups(manifest.schema, manifest.groups)
    row_bytes = [group.row_bytes for group in manifest.groups]
    for index, shard in enumerate(manifest.shards):
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
    check_hashes([entry.sha256 for shard in manifest.shards for entry in shard.files])
    check_layers(manifest.layers, manifest.shards, manifest.schema)
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


def _check_files(manifest: StreamManifest) -> None:
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


def _fingerprint(manifest: StreamManifest, layers: set[str]) -> str:
    """Hash a text of one line per fact, which any tool can write again; the format page of the docs spells it out."""
    lines = ["guideloom stream", f"row {manifest.schema.row_bytes}"]
    lines += [
        f"field {quoted(field.name)} {field.dtype.str} {list(field.shape)} {field.offset}"
        for field in manifest.schema.fields
    ]
    lines += [f"group {group.row_bytes} {' '.join(quoted(name) for name in group.names)}" for group in manifest.groups]
    for shard in manifest.shards:
        lines.append(f"shard {shard.rows} {' '.join([entry.sha256 for entry in shard.files])}")
    for position, layer in enumerate(manifest.layers):
        if layer.name in layers:
            lines += fingerprint_lines(layer, [shard.layers[position] for shard in manifest.shards])
    text = "\n".join(lines) + "\n"
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
