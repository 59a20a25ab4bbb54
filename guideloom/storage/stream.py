"""The write side of a token stream."""

from typing import Any

import numpy.typing as npt

from guideloom._typing import PathLike
from guideloom.formats.schema import Schema
from guideloom.storage.dataset import DatasetStorage
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
            f"<StreamStorage {str(self.path)!r}: {fields}; {len(manifest.shards):,} shards, "
            f"{manifest.num_rows:,} rows, {manifest.num_bytes:,} bytes, snapshot {manifest.snapshot}>"
        )

    def _writer(self, number: int) -> StreamShardWriter:
        return StreamShardWriter(self.path, number, self.schema, self.manifest.groups)
