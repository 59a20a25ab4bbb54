"""What manifests say of annotation layers, and what is checked of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from guideloom.errors import ManifestError
from guideloom.formats.encoding import Encoding, check_encoding_name, find
from guideloom.formats.schema import Schema, check_field_name
from guideloom.storage.checksums import BLOCK_BYTES
from guideloom.storage.manifest import check_hashes, check_names, quoted
from guideloom.storage.metadata import encode_metadata
from guideloom.storage.names import (
    CHECKSUMS_SUFFIX,
    LAYER_SUFFIX,
    PAYLOADS_SUFFIX,
    SHARDS_FOLDER,
    SPANS_SUFFIX,
    seed_of,
    shard_of,
)
from guideloom.storage.records import (
    MAX_COUNT,
    EncodingRecord,
    LayerEntry,
    LayerRecord,
    LayerShardRecord,
    ShardEntry,
)
from guideloom.storage.span_table import INDEX_BYTES, SPAN_BYTES, num_blocks

MAX_LAYERS = 256


def layer_record(name: str, encoding: Encoding) -> LayerRecord:
    """Return what a manifest keeps of a layer.

    Raises
    ------
    ValueError or TypeError
        If the name is none that a layer can have, or the encoding's name or options cannot be kept.
    """
    check_field_name(name)
    check_encoding_name(encoding.name)
    options = msgspec.json.decode(msgspec.json.encode(dict(encoding.options)))  # as a manifest gives them back
    encode_metadata(options)
    return LayerRecord(name, EncodingRecord(encoding.name, options))


def encoding_of(layer: LayerRecord) -> Encoding:
    """Return the encoding of a layer's payloads. Raises as `find` does."""
    return find(layer.encoding.name, layer.encoding.options)


def num_index_entries(entry: LayerEntry, num_elements: int) -> int:
    """Return how many entries the index of a shard of so many elements has."""
    return num_blocks(num_elements, entry.block_elements) + 1


def spans_file_bytes(entry: LayerEntry, num_elements: int) -> int:
    """Return the size of the file of rows and index."""
    return SPAN_BYTES * entry.spans + INDEX_BYTES * num_index_entries(entry, num_elements)


def layer_files(entry: LayerEntry, num_elements: int) -> list[tuple[str, int]]:
    """Return the files of a layer of a shard of so many elements, with their sizes."""
    size = spans_file_bytes(entry, num_elements)
    side_bytes = 4 * (-(-size // BLOCK_BYTES) + 1)
    return [(entry.file, size), (entry.checksums, side_bytes), (entry.payloads, entry.payload_bytes)]


def layer_shard_name(entry: LayerEntry) -> str:
    """Return the name of the manifest of a layer of a shard, if the layer was added."""
    return entry.file.removesuffix(SPANS_SUFFIX) + LAYER_SUFFIX


def layer_shard_record(layer: LayerRecord, shard: ShardEntry, entry: LayerEntry) -> LayerShardRecord:
    """Return the manifest of a layer of a shard."""
    return LayerShardRecord(
        format="guideloom-layer",
        version=0,
        requires=(),
        kind="stream",
        layer=layer,
        number=shard.number,
        stream=stream_content(shard),
        entry=entry,
    )


def stream_content(shard: ShardEntry) -> tuple[str, ...]:
    """Return what tells the rows of one shard from those of another."""
    return tuple(file.sha256 for file in shard.files)


def is_regular(entry: LayerEntry, number: int) -> bool:
    """Whether a layer of a shard is as a writer makes it, so that a planted manifest cannot claim other files."""
    stem = entry.file.removeprefix(f"{SHARDS_FOLDER}/").removesuffix(SPANS_SUFFIX)
    name = f"{SHARDS_FOLDER}/{stem}"
    return (
        shard_of(stem) == number
        and (entry.file, entry.checksums, entry.payloads)
        == (name + SPANS_SUFFIX, name + CHECKSUMS_SUFFIX, name + PAYLOADS_SUFFIX)
        and entry.checksum_seed == seed_of(stem)
    )


def check_layers(layers: Sequence[LayerRecord], shards: Sequence[ShardEntry], schema: Schema) -> None:
    """Hold the layers of a manifest against its shards.

    Raises
    ------
    ManifestError
        If there are too many, two have one name or one that a field has, a shard lacks one, an index is of no size
        that there is, or a sum does not fit in 63 bits; the message names the place.
    UnsafePathError
        If a file name could lead out of the dataset.
    """
    if len(layers) > MAX_LAYERS:
        raise ManifestError(f"{len(layers)} layers are more than {MAX_LAYERS}")
    seen = set(schema.names)
    for index, layer in enumerate(layers):
        try:
            check_field_name(layer.name)
            check_encoding_name(layer.encoding.name)
            encode_metadata(layer.encoding.options)
        except (TypeError, ValueError) as error:
            raise ManifestError(f"layers[{index}]: {error}") from error
        if layer.name in seen:
            raise ManifestError(f"layers[{index}]: a field or a layer is named {layer.name!r} already")
        seen.add(layer.name)
    for index, shard in enumerate(shards):
        if len(shard.layers) != len(layers):
            raise ManifestError(f"shards[{index}] has {len(shard.layers)} layers, and the dataset {len(layers)}")
        for position, entry in enumerate(shard.layers):
            place = f"shards[{index}].layers[{position}]"
            check_names((entry.file, entry.checksums, entry.payloads), place=place)
            if entry.block_elements & (entry.block_elements - 1):
                raise ManifestError(f"{place}.block_elements is {entry.block_elements}, no power of two")
            if spans_file_bytes(entry, shard.rows) > MAX_COUNT:
                raise ManifestError(f"{place} has more bytes than fit in 63 bits")
    entries = [entry for shard in shards for entry in shard.layers]
    if sum(entry.payload_bytes for entry in entries) > MAX_COUNT:
        raise ManifestError("the payloads of the layers have more bytes than fit in 63 bits")
    check_hashes([digest for entry in entries for digest in (entry.sha256, entry.payload_sha256)])


def fingerprint_lines(layer: LayerRecord, entries: Iterable[LayerEntry]) -> list[str]:
    """Return the lines of one layer in the text that the fingerprint hashes."""
    options = msgspec.json.encode(layer.encoding.options, order="deterministic").decode()
    lines = [f"layer {quoted(layer.name)} encoding {quoted(layer.encoding.name)} {options}"]
    lines += [f"spans {entry.spans} {entry.sha256} {entry.payload_bytes} {entry.payload_sha256}" for entry in entries]
    return lines
