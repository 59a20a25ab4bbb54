"""Adding an annotation layer to a stream that is written already."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from guideloom.errors import ManifestError, ShardError
from guideloom.formats.encoding import Encoding
from guideloom.storage.durable import list_folder, make_folder, read_file
from guideloom.storage.layer_file import LayerFile
from guideloom.storage.layer_manifest import (
    is_regular,
    layer_files,
    layer_record,
    layer_shard_name,
    layer_shard_record,
    stream_content,
)
from guideloom.storage.layer_values import SpansGiven, encode_spans
from guideloom.storage.merge import check_size, refuse_missing
from guideloom.storage.names import LAYER_SUFFIX, SHARDS_FOLDER, shard_of
from guideloom.storage.records import (
    LayerEntry,
    LayerRecord,
    LayerShardRecord,
    ShardEntry,
    decode_record,
    encode_record,
)
from guideloom.storage.writer import ShardWriter

if TYPE_CHECKING:
    from guideloom.storage.stream import StreamStorage

_MAX_RECORD_BYTES = 1024 * 1024


class LayerShardWriter(ShardWriter[LayerFile]):
    """Writes the spans of one shard of a layer that is added. Made by `LayerStorage.writer`; a context manager.

    They belong to the dataset once they are closed without an error, and so for every shard, and the layer is
    committed. Otherwise as `guideloom.storage.stream_writer.StreamShardWriter`.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    shard : ShardEntry
        The shard that the spans lie over.
    layer : LayerRecord
        The layer.
    encoding : Encoding
        Of its payloads.
    """

    _suffix = LAYER_SUFFIX

    def __init__(self, root: Path, shard: ShardEntry, layer: LayerRecord, encoding: Encoding) -> None:
        self._entry = shard
        self._layer = layer
        self._encoding = encoding
        self._last_start = 0
        super().__init__(root, shard.number, [functools.partial(LayerFile, root, shard.number)])

    @property
    def num_elements(self) -> int:
        """Elements of the shard, which spans lie among."""
        return self._entry.rows

    def append(self, spans: SpansGiven) -> None:
        """Append spans; all of them, or, if they are refused, none.

        Parameters
        ----------
        spans : iterable of (start, end, value), or FlatSpans
            Elements of the shard, half-open, and payloads; starts do not decrease, from one call to the next either.
            Spans may leave gaps, overlap and be empty.

        Raises
        ------
        ValueError or TypeError
            If a span is out of order or out of range, or the encoding refuses a value.
        WriteError
            If the system refused to write. This is final: the shard of the layer cannot be published.
        ClosedError
            If the writer is closed, aborted or failed, or belongs to the parent of this process.
        """
        self._check_open()
        encoded = encode_spans(self._encoding, spans, after=self._last_start, num_elements=self.num_elements)
        try:
            self._files[0].append(*encoded)
        except BaseException as error:
            self._fail(error)
            raise
        if len(encoded.start):
            self._last_start = int(encoded.start[-1])
        self._rows += len(encoded.start)

    def _publish_files(self) -> bytes:
        entry = self._files[0].publish(self.num_elements)
        return encode_record(layer_shard_record(self._layer, self._entry, entry))


class LayerStorage:
    """A layer that is being added to the committed shards of a stream. Made by `StreamStorage.add_layer`.

    Any number of processes and hosts may write shards of it, each its own, and one of them commits.

    Parameters
    ----------
    storage : StreamStorage
        The stream.
    name : str
        The layer's name.
    encoding : Encoding
        Of its payloads.
    """

    def __init__(self, storage: StreamStorage, name: str, encoding: Encoding) -> None:
        self._storage = storage
        self._encoding = encoding
        self._layer = layer_record(name, encoding)
        self._shards()

    def __repr__(self) -> str:
        return f"<LayerStorage {self._layer.name!r} of {str(self._storage.path)!r}: {self._encoding!r}>"

    def writer(self, shard: SupportsIndex) -> LayerShardWriter:
        """Return a writer for the spans of one committed shard.

        Raises
        ------
        ShardError
            If there is no such shard, or the dataset has the layer.
        WriteError
            If the files cannot be made.
        """
        number = shard.__index__()
        entry = next((entry for entry in self._shards() if entry.number == number), None)
        if entry is None:
            raise ShardError(f"there is no committed shard {number} to add a layer to", shards=[number])
        make_folder(self._storage.path / SHARDS_FOLDER)
        return LayerShardWriter(self._storage.path, entry, self._layer, self._encoding)

    def missing(self) -> list[int]:
        """Return the shards whose spans are still to be written."""
        shards = self._shards()
        there = self._written(shards)
        return [shard.number for shard in shards if shard.number not in there]

    def commit(self) -> int:
        """Publish the layer as part of the next snapshot, if the spans of every shard are written.

        Returns
        -------
        int
            Number of that snapshot, which is durable.

        Raises
        ------
        ShardError
            If a shard's spans are missing, damaged, or were written twice with different content. Nothing is published.
        CommitConflict
            If another commit came first; commit again.
        ManifestError
            If a manifest cannot be read.
        WriteError
            If the system refused to write.
        """
        shards = self._shards()

        def find() -> list[LayerEntry]:
            there = self._written(shards)
            left = [shard.number for shard in shards if shard.number not in there]
            refuse_missing(left, count=len(left))
            for shard in shards:
                for file, num_bytes in layer_files(there[shard.number], shard.rows):
                    check_size(self._storage.path / file, num_bytes, shard.number)
            return [there[shard.number] for shard in shards]

        return self._storage.publish_layer(self._layer, find)

    def _shards(self) -> Sequence[ShardEntry]:
        """Return the shards of the newest snapshot, which must not have the layer."""
        manifest = self._storage.refresh()
        if any(layer.name == self._layer.name for layer in manifest.layers):
            raise ShardError(f"snapshot {manifest.snapshot} has a layer {self._layer.name!r}", shards=[])
        if self._layer.name in manifest.schema.names:
            raise ValueError(f"the stream has a field {self._layer.name!r}; name the layer otherwise")
        return manifest.shards

    def _written(self, shards: Sequence[ShardEntry]) -> dict[int, LayerEntry]:
        """Return what was written of the layer, by shard."""
        content = {shard.number: stream_content(shard) for shard in shards}
        found: dict[int, LayerEntry] = {}
        folder = self._storage.path / SHARDS_FOLDER
        for name in sorted(list_folder(folder)):
            if not name.endswith(LAYER_SUFFIX) or shard_of(name.removesuffix(LAYER_SUFFIX)) not in content:
                continue
            path = folder / name
            record = decode_record(read_file(path, max_bytes=_MAX_RECORD_BYTES), LayerShardRecord, path=str(path))
            if record.layer.name != self._layer.name:
                continue
            number, entry = record.number, record.entry
            if not is_regular(entry, number) or layer_shard_name(entry) != f"{SHARDS_FOLDER}/{name}":
                raise ManifestError(f"{path} does not describe the layer it is named for; remove it", path=str(path))
            if record.layer != self._layer or record.stream != content[number]:
                raise ShardError(
                    f"{path} was written for a layer {self._layer.name!r} of another encoding, or over other rows; "
                    "remove the file, and write it again",
                    shards=[number],
                )
            known = found.setdefault(number, entry)
            if known.content != entry.content:
                raise ShardError(
                    f"layer {self._layer.name!r} of shard {number} was written twice with different content: "
                    f"{known.file} and {entry.file}; remove the {LAYER_SUFFIX} file beside the wrong one",
                    shards=[number],
                )
        return found
