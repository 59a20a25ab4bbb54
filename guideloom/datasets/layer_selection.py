"""Which annotation layers are delivered."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from guideloom.datasets.layer_files import LayerFiles
from guideloom.datasets.pieces import CheckedFiles
from guideloom.errors import UnknownEncodingError
from guideloom.formats.encoding import Encoding
from guideloom.storage.layer_manifest import encoding_of, num_index_entries, spans_file_bytes
from guideloom.storage.records import LayerRecord
from guideloom.storage.stream_manifest import StreamManifest

# Starts of spans are stored in 32 bits, and told apart by where the window lies.
MOST_WINDOW_ELEMENTS = 2**30


Layers: TypeAlias = Sequence[str] | Mapping[str, Encoding | None]


def check_layers(manifest: StreamManifest, layers: Layers, window: int) -> dict[str, Encoding | None]:
    """Return the layers that `layers` asks for, with the encodings that it says in place of the manifest's.

    Raises
    ------
    TypeError or ValueError
        If a layer does not exist or is named twice, or a window is too long for layers.
    UnknownEncodingError
        If the encoding of a layer is not registered.
    """
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names; did you mean [{layers!r}]?")
    wanted = dict(layers) if isinstance(layers, Mapping) else dict.fromkeys(layers)
    if len(wanted) < len(layers):
        raise ValueError(f"layers names a layer twice: {list(layers)}")
    if wanted and window > MOST_WINDOW_ELEMENTS:
        raise ValueError(f"a window with layers has at most {MOST_WINDOW_ELEMENTS} elements, not {window}")
    known = {layer.name: layer for layer in manifest.layers}
    for name, encoding in wanted.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"there is no layer {name!r} among {list(known)}{hint}")
        if encoding is None:
            _check_registered(known[name])
    return wanted


def layer_files(manifest: StreamManifest, name: str, encoding: Encoding | None) -> LayerFiles:
    """Return the files of a layer, as arrays over the shards."""
    position = next(i for i, layer in enumerate(manifest.layers) if layer.name == name)
    pairs = [(shard.layers[position], shard.rows) for shard in manifest.shards]
    return LayerFiles(
        name=name,
        encoding=encoding_of(manifest.layers[position]) if encoding is None else encoding,
        spans=CheckedFiles(
            paths=[entry.file for entry, _ in pairs],
            side_paths=[entry.checksums for entry, _ in pairs],
            file_bytes=np.array([spans_file_bytes(entry, rows) for entry, rows in pairs], np.int64),
            seeds=np.array([entry.checksum_seed for entry, _ in pairs], np.uint32),
        ),
        payload_paths=[entry.payloads for entry, _ in pairs],
        num_spans=np.array([entry.spans for entry, _ in pairs], np.int64),
        num_entries=np.array([num_index_entries(entry, rows) for entry, rows in pairs], np.int64),
        block_elements=np.array([entry.block_elements for entry, _ in pairs], np.int64),
        payload_bytes=np.array([entry.payload_bytes for entry, _ in pairs], np.int64),
    )


def _check_registered(layer: LayerRecord) -> None:
    try:
        encoding_of(layer)
    except UnknownEncodingError as error:
        raise UnknownEncodingError(
            f"no encoding is registered under the name {layer.encoding.name!r}, that of layer {layer.name!r}: register "
            "its class with guideloom.formats.register before the dataset is opened, or open it with "
            f"layers={{{layer.name!r}: guideloom.formats.Bytes()}} for the stored bytes",
            name=layer.encoding.name,
        ) from error
