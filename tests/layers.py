"""Streams with annotation layers for tests: made in memory, drawn at random, and read by plain Python."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import guideloom as gl
from guideloom.formats.encoding import Encoding
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.kinds import load_manifest
from guideloom.storage.layer_manifest import layer_record
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import LayerEntry
from guideloom.storage.span_table import SpanTable
from guideloom.storage.stream_manifest import StreamManifest
from tests.strategies import SHARD_LENGTHS
from tests.streams import Files, counted, stream_files

Span = tuple[int, int, Any]  # of a shard: start, end, payload


@dataclass(frozen=True)
class LayeredStream:
    """A stream of counted tokens, and the spans of each layer, shard after shard."""

    lengths: list[int]
    encodings: dict[str, Encoding]
    spans: dict[str, list[list[Span]]]

    def files(self) -> Files:
        """Return the dataset's files by name."""
        return with_layers(stream_files(counted(self.lengths, "<i4"), "<i4"), self.encodings, self.spans)

    def touching(self, name: str, begin: int, end: int) -> list[tuple[int, int, int, int, Any]]:
        """Return start and end in a window of the stream, true start and end, and payload of what touches it."""
        found = []
        base = 0
        for length, spans in zip(self.lengths, self.spans[name], strict=True):
            for start, stop, value in spans:
                low, high = start + base, stop + base
                if low < end and (high > begin or low >= begin) and low < base + length:
                    found.append((max(low, begin) - begin, min(high, end) - begin, low, high, value))
            base += length
        return found


def with_layers(files: Files, encodings: Mapping[str, Encoding], spans: Mapping[str, list[list[Span]]]) -> Files:
    """Return the files of a stream with layers beside it."""
    files = dict(files)
    manifest = load_manifest(files[MANIFEST_NAME], path=MANIFEST_NAME)
    assert isinstance(manifest, StreamManifest)
    for position, (name, encoding) in enumerate(encodings.items()):
        entries = []
        for number, (shard, shard_spans) in enumerate(zip(manifest.shards, spans[name], strict=True)):
            stem = f"shards/{number:05d}-layer{position}"
            entries.append(layer_entry(files, stem, 7000 + 10 * number + position, encoding, shard_spans, shard.rows))
        manifest = manifest.with_layer(layer_record(name, encoding), entries)
    files[MANIFEST_NAME] = encode_manifest(manifest)
    return files


def layer_entry(
    files: Files, stem: str, seed: int, encoding: Encoding, spans: Sequence[Span], num_elements: int
) -> LayerEntry:
    """Add the files of one layer of one shard, and return what the manifest says of them."""
    table = SpanTable(file_seed=seed)
    payloads = [bytes(encoding.encode(value)) for _, _, value in spans]
    start, end = (np.array([span[i] for span in spans], np.int64) for i in range(2))
    payload = np.frombuffer(b"".join(payloads), np.uint8)
    rows = table.append(start, end, payload, np.array([len(part) for part in payloads], np.int64))
    block_elements, index = table.finish(num_elements)
    data = rows.tobytes() + index.tobytes()
    checksums = BlockChecksums(file_seed=seed)
    checksums.update(data)
    files[f"{stem}.spans"], files[f"{stem}.crc32c"], files[f"{stem}.payloads"] = (
        data,
        checksums.finish(),
        bytes(payload),
    )
    return LayerEntry(
        file=f"{stem}.spans",
        spans=len(spans),
        block_elements=block_elements,
        sha256=table.content_hash(),
        checksums=f"{stem}.crc32c",
        checksum_seed=seed,
        payloads=f"{stem}.payloads",
        payload_bytes=len(payload),
        payload_sha256=hashlib.sha256(bytes(payload)).hexdigest(),
    )


PAYLOADS: dict[str, tuple[Encoding, st.SearchStrategy[Any]]] = {
    "array": (gl.formats.NumpyArray("<i4"), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)),
    "pairs": (
        gl.formats.NumpyArray("<u2", (2,)),
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
    ),
    "json": (gl.formats.JSON(), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
    "text": (gl.formats.Text(), st.text(max_size=5)),
}


@st.composite
def layered_streams(draw: st.DrawFn) -> LayeredStream:
    """Streams with up to three layers: spans with gaps, overlaps, empty ones; empty layers and shards."""
    lengths = draw(st.lists(st.one_of(SHARD_LENGTHS, st.just(5000)), min_size=1, max_size=4))
    names = draw(st.lists(st.sampled_from(sorted(PAYLOADS)), min_size=1, max_size=3, unique=True))
    spans: dict[str, list[list[Span]]] = {}
    for name in names:
        how = draw(st.sampled_from(["none", "few", "tiled", "dense"]))
        spans[name] = [draw(_spans(length, how, PAYLOADS[name][1])) for length in lengths]
    return LayeredStream(lengths, {name: PAYLOADS[name][0] for name in names}, spans)


@st.composite
def _spans(draw: st.DrawFn, length: int, how: str, payloads: st.SearchStrategy[Any]) -> list[Span]:
    if how == "none":
        return []
    if how == "tiled":
        step = max(draw(st.integers(1, 300)), length // 30)
        return [(low, min(low + step, length), draw(payloads)) for low in range(0, length, step)]
    starts = sorted(draw(st.lists(st.integers(0, length), max_size=8 if how == "few" else 30)))
    longest = draw(st.sampled_from([1, 40, 3000]))
    return [(low, min(low + draw(st.integers(0, longest)), length), draw(payloads)) for low in starts]
