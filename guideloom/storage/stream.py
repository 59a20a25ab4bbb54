"""The write side of a token stream."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from guideloom._typing import PathLike
from guideloom.formats.encoding import Encoding
from guideloom.formats.schema import Schema
from guideloom.storage.dataset import DatasetStorage
from guideloom.storage.layer_manifest import layer_record
from guideloom.storage.layer_storage import LayerStorage
from guideloom.storage.records import LayerEntry, LayerRecord
from guideloom.storage.stream_manifest import StreamManifest
from guideloom.storage.stream_writer import StreamShardWriter


class StreamStorage(DatasetStorage[StreamManifest, StreamShardWriter]):
    """A token stream on a file system, to be written. Make one with `create` or `open`.

    A dataset is a folder with the manifest ``guideloom.json``, the files of its shards in ``shards/``, and in
    ``snapshots/N/`` the manifest of each snapshot. Snapshot 0 holds the schema alone; `create` makes it, so that every
    process that writes finds it, and ``guideloom.json``, which readers look for, comes with the first commit. Files of
    a committed shard never change. Nothing is locked: any number of processes and hosts may write shards, each its
    own, and commit.

    Attributes
    ----------
    path : Path
        Folder of the dataset.
    manifest : StreamManifest
        The snapshot that was the newest when the storage was opened, or by its last commit.
    """

    _manifest_type = StreamManifest

    @classmethod
    def create(cls, path: PathLike, *, dtype: npt.DTypeLike, metadata: dict[str, Any] | None = None) -> "StreamStorage":
        """Make a dataset without shards.

        Parameters
        ----------
        path : path
            Its folder, which is made if it is missing.
        dtype : numpy dtype, or what `numpy.dtype` takes
            What a row holds, as `Schema.of` takes it; a plain dtype becomes one field ``tokens``.
        metadata : dict, optional
            The user's own, plain JSON of at most 1 MiB; kept in the manifest.

        Raises
        ------
        FileExistsError
            If the folder holds a dataset.
        TypeError or ValueError
            If a stream cannot hold rows of `dtype`, or JSON the metadata.
        WriteError
            If the system refused to write.
        """
        schema = Schema.of(dtype)
        return cls._create(path, StreamManifest(schema, (schema,), (), 0, {} if metadata is None else metadata))

    def add_layer(self, name: str, encoding: Encoding) -> LayerStorage:
        """Begin, or continue, to add an annotation layer to the committed shards, whose rows stay as they are.

        Parameters
        ----------
        name : str
            Of the layer; unlike every field and other layer.
        encoding : Encoding
            Of its payloads, for example ``guideloom.formats.NumpyArray("<i4")``.

        Returns
        -------
        LayerStorage
            Write the spans of each shard with it, and commit.

        Raises
        ------
        ShardError
            If the dataset has the layer.
        ValueError or TypeError
            If the name is none that a layer can have, or the encoding's name or options cannot be kept.
        """
        return LayerStorage(self, name, encoding)

    def refresh(self) -> StreamManifest:
        """Return the manifest of the newest snapshot."""
        self._refresh()
        return self.manifest

    def publish_layer(self, layer: LayerRecord, find: Callable[[], Sequence[LayerEntry]]) -> int:
        """Publish a snapshot with one more layer, of which `find` returns an entry for each shard.

        What `LayerStorage.commit` does.
        """
        base = self.manifest
        self._publish(base.snapshot + 1, lambda: base.with_layer(layer, find()))
        return self.snapshot

    @property
    def schema(self) -> Schema:
        """What a row holds."""
        return self.manifest.schema

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{field.name} {field.dtype}{list(field.shape) if field.shape else ''}" for field in self.schema.fields
        )
        manifest = self.manifest
        return (
            f"<{type(self).__name__} {str(self.path)!r}: {fields}; {len(manifest.shards):,} shards, "
            f"{manifest.num_rows:,} rows, {manifest.num_bytes:,} bytes, "
            f"{'layers ' + ', '.join(layer.name for layer in manifest.layers) + ', ' if manifest.layers else ''}"
            f"snapshot {manifest.snapshot}>"
        )

    def _writer(self, number: int) -> StreamShardWriter:
        return StreamShardWriter(self.path, number, self.schema, self.manifest.groups, self.manifest.layers)


class StreamWithMetadataStorage(StreamStorage):
    """A token stream with annotation layers, to be written. Make one with `create` or `open`.

    A layer holds spans of the stream, each with a payload. `create` names the layers that are written with the stream;
    `add_layer` adds one to what is written already, to a plain stream too. Otherwise as `StreamStorage`.
    """

    @classmethod
    def create(
        cls,
        path: PathLike,
        *,
        dtype: npt.DTypeLike,
        metadata: dict[str, Any] | None = None,
        layers: Mapping[str, Encoding] | None = None,
    ) -> "StreamWithMetadataStorage":
        """Make a dataset without shards.

        Parameters
        ----------
        path : path
            Its folder, which is made if it is missing.
        dtype : numpy dtype, or what `numpy.dtype` takes
            What a row holds, as `Schema.of` takes it; a plain dtype becomes one field ``tokens``.
        metadata : dict, optional
            The user's own, plain JSON of at most 1 MiB; kept in the manifest.
        layers : mapping of str to Encoding, optional
            The name of each layer, unlike every field, and how its payloads are encoded.

        Raises
        ------
        FileExistsError
            If the folder holds a dataset.
        TypeError or ValueError
            If a stream cannot hold rows of `dtype`, a layer cannot have its name or encoding, or JSON the metadata.
        WriteError
            If the system refused to write.
        """
        schema = Schema.of(dtype)
        records = tuple(layer_record(name, encoding) for name, encoding in (layers or {}).items())
        return cls._create(
            path, StreamManifest(schema, (schema,), (), 0, {} if metadata is None else metadata, records)
        )
