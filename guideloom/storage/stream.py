"""The write side of a token stream: making a dataset, its shards, and its snapshots."""

import logging
import operator
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, SupportsIndex

import numpy.typing as npt

from guideloom._typing import PathLike
from guideloom.errors import CommitConflict, ManifestError, MissingFileError, ShardError
from guideloom.formats.schema import Schema
from guideloom.storage.durable import list_folder, make_folder, publish_folder, read_file, write_file
from guideloom.storage.group_file import SHARDS_FOLDER
from guideloom.storage.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    SNAPSHOTS_FOLDER,
    Manifest,
    encode_manifest,
    load_manifest,
    snapshot_name,
)
from guideloom.storage.merge import merge_shards, refuse_missing, written_shards
from guideloom.storage.records import MAX_SHARD_NUMBER
from guideloom.storage.writer import ShardWriter

logger = logging.getLogger("guideloom")

_SNAPSHOT = re.compile("0|[1-9][0-9]{0,17}")


class StreamStorage:
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
    manifest : Manifest
        The snapshot that was the newest when the storage was opened, or by its last commit.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

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
        root = Path(os.path.abspath(path))
        schema = Schema.of(dtype)
        manifest = Manifest(schema, (schema,), (), 0, {} if metadata is None else metadata)
        data = encode_manifest(manifest)
        if not _holds_dataset(root):
            make_folder(root / SHARDS_FOLDER)
            make_folder(root / SNAPSHOTS_FOLDER)
            if publish_folder(root / SNAPSHOTS_FOLDER / "0", {MANIFEST_NAME: data}):
                return cls(root, manifest)
        raise FileExistsError(
            f"{root} holds a dataset; StreamStorage.open({str(path)!r}) opens it to write more shards. To write it "
            "anew, remove the folder first"
        )

    @classmethod
    def open(cls, path: PathLike) -> "StreamStorage":
        """Open a dataset to write more of it, and finish a commit that was interrupted.

        Raises
        ------
        MissingFileError
            If the folder holds no dataset.
        ManifestError
            If its manifest cannot be read.
        WriteError
            If the system refused to write.
        """
        root = Path(os.path.abspath(path))
        return cls(root, _newest_manifest(root))

    @property
    def schema(self) -> Schema:
        """What a row holds."""
        return self.manifest.schema

    @property
    def snapshot(self) -> int:
        """Number of the snapshot in `manifest`; 0 before the first commit."""
        return self.manifest.snapshot

    def writer(self, shard: SupportsIndex) -> ShardWriter:
        """Return a writer for one shard.

        Shards are shared out by plan: whoever writes shard 3 alone does. If several write it all the same, as a job
        that is run again may, they do not disturb each other, and `commit` compares what they wrote.

        Parameters
        ----------
        shard : int
            Its number, from 0; the shards make up the stream in the order of their numbers.

        Raises
        ------
        ShardError
            If the shard is committed.
        ValueError or TypeError
            If `shard` is no number of a shard.
        WriteError
            If the files cannot be made.
        """
        number = _shard_number(shard)
        self._refresh()
        if any(entry.number == number for entry in self.manifest.shards):
            raise ShardError(
                f"shard {number} is committed in snapshot {self.snapshot}, and committed shards do not change; "
                "`missing` lists those left to write",
                shards=[number],
            )
        make_folder(self.path / SHARDS_FOLDER)
        return ShardWriter(self.path, number, self.schema, self.manifest.groups)

    def missing(self, shards: Iterable[SupportsIndex]) -> list[int]:
        """Return those of the `shards` that are neither committed nor written: what is left to do.

        Parameters
        ----------
        shards : iterable of int
            Numbers, for example ``range(100)``.

        Raises
        ------
        ValueError or TypeError
            If an entry is no number of a shard.
        """
        self._refresh()
        there = {entry.number for entry in self.manifest.shards}
        there.update(written_shards(self.path).values())
        return [number for number in map(_shard_number, shards) if number not in there]

    def commit(self, *, shards: Iterable[SupportsIndex] = ()) -> int:
        """Publish all shards written so far as the next snapshot.

        If none was written since the newest snapshot, that one stays. A commit without any shards makes an empty
        dataset.

        Parameters
        ----------
        shards : iterable of int, optional
            Numbers that must be there, for example ``range(100)``: without them a last shard that failed is not
            missed, since numbering may end before it.

        Returns
        -------
        int
            Number of the newest snapshot, which is durable.

        Raises
        ------
        ShardError
            If numbers are missing, two shards of one number differ in content, or a shard has another schema, a
            missing file or one of another size. Nothing is published.
        CommitConflict
            If another commit came first; commit again to add what it left out.
        ManifestError
            If a manifest cannot be read.
        WriteError
            If the system refused to write.
        """
        base = self.manifest = _newest_manifest(self.path)
        merged = merge_shards(self.path, base)
        left = sorted(set(map(_shard_number, shards)).difference(entry.number for entry in merged))
        refuse_missing(left, count=len(left))
        if base.snapshot > 0 and len(merged) == len(base.shards):
            return base.snapshot
        manifest = Manifest(base.schema, base.groups, merged, base.snapshot + 1, base.metadata)
        data = encode_manifest(manifest)
        make_folder(self.path / SNAPSHOTS_FOLDER)
        if not publish_folder(_snapshot_path(self.path, manifest.snapshot).parent, {MANIFEST_NAME: data}):
            raise CommitConflict(
                f"another commit published snapshot {manifest.snapshot} of {self.path} first; commit again to add what "
                "it left out",
                snapshot=manifest.snapshot,
            )
        _point_to_newest(self.path, manifest.snapshot, data)
        self.manifest = manifest
        if not merged:
            logger.warning("%s was committed without shards: has every writer been closed?", self.path)
        return manifest.snapshot

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{field.name} {field.dtype}{list(field.shape) if field.shape else ''}" for field in self.schema.fields
        )
        manifest = self.manifest
        return (
            f"<StreamStorage {str(self.path)!r}: {fields}; {len(manifest.shards):,} shards, "
            f"{manifest.num_rows:,} rows, {manifest.num_bytes:,} bytes, snapshot {manifest.snapshot}>"
        )

    def _refresh(self) -> None:
        if _newest_snapshot(self.path) != self.snapshot:
            self.manifest = _newest_manifest(self.path)


def _newest_manifest(root: Path) -> Manifest:
    """Return the manifest of the newest snapshot, and see that ``guideloom.json`` is that one."""
    newest = _newest_snapshot(root)
    try:
        pointed = read_file(root / MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
    except MissingFileError:
        if newest is None:
            raise MissingFileError(
                f"{root} holds no dataset; StreamStorage.create makes one", path=str(root / MANIFEST_NAME)
            ) from None
        pointed = b""
    if newest is None:  # a copy of what readers need, without the history
        return load_manifest(pointed, path=str(root / MANIFEST_NAME))
    path = _snapshot_path(root, newest)
    data = read_file(path, max_bytes=MAX_MANIFEST_BYTES)
    manifest = load_manifest(data, path=str(path))
    if pointed == data or (newest == 0 and not pointed):
        return manifest
    if pointed:
        named = load_manifest(pointed, path=str(root / MANIFEST_NAME))
        if named.snapshot == newest and named != manifest:
            raise ManifestError(f"{root / MANIFEST_NAME} and {path} are different datasets; restore one of them")
        if named.snapshot >= newest:
            return named
    _point_to_newest(root, newest, data)
    return manifest


def _point_to_newest(root: Path, snapshot: int, data: bytes) -> None:
    """Make ``guideloom.json`` the manifest of the newest snapshot, even if another commit does the same meanwhile.

    Whoever replaces it looks for a newer snapshot afterwards, so that the last to replace it leaves the newest.
    """
    while True:
        write_file(root / MANIFEST_NAME, data)
        newest = _newest_snapshot(root)
        if newest is None or newest <= snapshot:
            return
        snapshot = newest
        data = read_file(_snapshot_path(root, snapshot), max_bytes=MAX_MANIFEST_BYTES)


def _newest_snapshot(root: Path) -> int | None:
    names = list_folder(root / SNAPSHOTS_FOLDER)
    return max((int(name) for name in names if _SNAPSHOT.fullmatch(name)), default=None)


def _snapshot_path(root: Path, snapshot: int) -> Path:
    return root / snapshot_name(snapshot)


def _holds_dataset(root: Path) -> bool:
    return _newest_snapshot(root) is not None or os.path.lexists(root / MANIFEST_NAME)


def _shard_number(shard: SupportsIndex) -> int:
    if isinstance(shard, bool):
        raise TypeError(f"a shard is named by its number, not by {shard}")
    number = operator.index(shard)
    if not 0 <= number <= MAX_SHARD_NUMBER:
        raise ValueError(f"{number} is no number of a shard; these run from 0 to {MAX_SHARD_NUMBER}")
    return number
