"""The write side of a dataset of any kind: making it, its shards, and its snapshots."""

import logging
import operator
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, SupportsIndex, TypeVar, cast

from guideloom._typing import PathLike
from guideloom.errors import CommitConflict, ManifestError, MissingFileError, ShardError
from guideloom.storage.claims import take_claim
from guideloom.storage.durable import NewFolder, list_folder, make_folder, read_file, write_file
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import (
    MANIFEST_NAME,
    REREAD_SECONDS,
    SNAPSHOTS_FOLDER,
    Manifest,
    encode_manifest,
    snapshot_name,
)
from guideloom.storage.merge import merge_shards, refuse_missing, written_shards
from guideloom.storage.names import SHARDS_FOLDER, SNAPSHOT
from guideloom.storage.records import MAX_MANIFEST_BYTES, MAX_SHARD_NUMBER
from guideloom.storage.writer import ShardWriter

logger = logging.getLogger("guideloom")

ManifestT = TypeVar("ManifestT", bound=Manifest)
WriterT = TypeVar("WriterT", bound=ShardWriter[Any])


class DatasetStorage(ABC, Generic[ManifestT, WriterT]):
    """A dataset on a file system, to be written: what is the same whatever it holds.

    A dataset is a folder with the manifest ``guideloom.json``, the files of its shards in ``shards/``, and in
    ``snapshots/N/`` the manifest of each snapshot. Snapshot 0 holds no shard; creating the dataset makes it, so that
    every process that writes finds it, and ``guideloom.json``, which readers look for, comes with the first commit.
    Files of a committed shard never change. Nothing is locked: any number of processes and hosts may write shards,
    each its own, and commit.

    Attributes
    ----------
    path : Path
        Folder of the dataset.
    manifest : Manifest
        The snapshot that was the newest when the storage was opened, or by its last commit.
    """

    _manifest_type: ClassVar[type[Manifest]]

    def __init__(self, path: Path, manifest: ManifestT) -> None:
        self.path = path
        self.manifest: ManifestT = manifest

    @abstractmethod
    def _writer(self, number: int) -> WriterT:
        """Return a writer for a shard that is not committed."""

    @classmethod
    def _create(cls, path: PathLike, manifest: ManifestT) -> Self:
        """Publish snapshot 0 of a new dataset."""
        root = Path(os.path.abspath(path))
        data = encode_manifest(manifest)
        if not _holds_dataset(root):
            make_folder(root / SHARDS_FOLDER)
            make_folder(root / SNAPSHOTS_FOLDER)
            with NewFolder(root / SNAPSHOTS_FOLDER / "0") as folder:
                folder.write(MANIFEST_NAME, data)
                if folder.publish():
                    return cls(root, manifest)
        raise FileExistsError(
            f"{root} holds a dataset; {cls.__name__}.open({str(path)!r}) opens it to write more shards. To write it "
            "anew, remove the folder first"
        )

    @classmethod
    def open(cls, path: PathLike) -> Self:
        """Open a dataset to write more of it, and finish a commit that was interrupted.

        Raises
        ------
        MissingFileError
            If the folder holds no dataset.
        ManifestError
            If its manifest cannot be read, or is that of a dataset of another kind.
        WriteError
            If the system refused to write.
        """
        root = Path(os.path.abspath(path))
        return cls(root, cls._newest(root))

    @property
    def snapshot(self) -> int:
        """Number of the snapshot in `manifest`; 0 before the first commit."""
        return self.manifest.snapshot

    def writer(self, shard: SupportsIndex, *, task: str | None = None) -> WriterT:
        """Return a writer for one shard.

        Shards are shared out by plan: whoever writes shard 3 alone does. If several write it all the same, as a job
        that is run again may, they do not disturb each other, and `commit` compares what they wrote.

        Parameters
        ----------
        shard : int
            Its number, from 0; the shards make up the dataset in the order of their numbers.
        task : str, optional
            Name of the work, such as ``"job-17/3"``, the same for each attempt at it. It claims the shard while the
            writer is open: another task hears of it at once. Another attempt at the same task takes the claim over, and
            so does any task from an owner that is gone. Claims are advice; nothing depends on them.

        Raises
        ------
        ShardError
            If the shard is committed.
        ShardClaimedError
            If another task that is alive has claimed the shard.
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
        claim = None if task is None else take_claim(self.path, number, task)
        try:
            writer = self._writer(number)
        except BaseException:
            if claim is not None:
                claim.release()
            raise
        writer.hold(claim)
        return writer

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
        base = self.manifest = self._newest(self.path)
        planned = set(map(_shard_number, shards))

        def make() -> ManifestT | None:
            merged = merge_shards(self.path, base)
            left = sorted(planned.difference(entry.number for entry in merged))
            refuse_missing(left, count=len(left))
            is_new = base.snapshot == 0 or len(merged) != len(base.shards)
            return base.with_shards(merged) if is_new else None

        if self._publish(base.snapshot + 1, make) and not self.manifest.shards:
            logger.warning("%s was committed without shards: has every writer been closed?", self.path)
        return self.manifest.snapshot

    def _publish(self, snapshot: int, make: Callable[[], ManifestT | None]) -> bool:
        """Publish a snapshot, unless `make` says that there is nothing to; return whether it was published.

        Its folder is there before `make` looks at any file: a `prune` that finds it spares what it might hold.
        """
        make_folder(self.path / SNAPSHOTS_FOLDER)
        with NewFolder(_snapshot_path(self.path, snapshot).parent) as folder:
            manifest = make()
            if manifest is None:
                return False
            data = encode_manifest(manifest)
            folder.write(MANIFEST_NAME, data)
            if not folder.publish():
                raise CommitConflict(
                    f"another commit published snapshot {snapshot} of {self.path} first; commit again to add what it "
                    "left out",
                    snapshot=snapshot,
                )
        _point_to_newest(self.path, snapshot, data)
        self.manifest = manifest
        return True

    def _refresh(self) -> None:
        if _newest_snapshot(self.path) != self.snapshot:
            self.manifest = self._newest(self.path)

    @classmethod
    def _newest(cls, root: Path) -> ManifestT:
        manifest = _newest_manifest(root, cls.__name__)
        if not isinstance(manifest, cls._manifest_type):
            raise ManifestError(
                f"{root} is a dataset of the kind {manifest.kind!r}, which {cls.__name__} does not write"
            )
        return cast(ManifestT, manifest)


def _newest_manifest(root: Path, storage: str) -> Manifest:
    """Return the manifest of the newest snapshot, and see that ``guideloom.json`` is that one."""
    newest = _newest_snapshot(root)
    try:
        pointed = read_file(root / MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
    except MissingFileError:
        if newest is None:
            raise MissingFileError(
                f"{root} holds no dataset; {storage}.create makes one", path=str(root / MANIFEST_NAME)
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
        named = _load_replaced(root / MANIFEST_NAME, pointed)
        if named.snapshot == newest and named != manifest:
            raise ManifestError(f"{root / MANIFEST_NAME} and {path} are different datasets; restore one of them")
        if named.snapshot >= newest:
            return named
    _point_to_newest(root, newest, data)
    return manifest


def _load_replaced(path: Path, data: bytes) -> Manifest:
    """Return the manifest in a file that commits replace, of which `data` were read; read it again while it changes."""
    while True:
        try:
            return load_manifest(data, path=str(path))
        except ManifestError:
            time.sleep(REREAD_SECONDS)
            before, data = data, read_file(path, max_bytes=MAX_MANIFEST_BYTES)
            if data == before:
                raise


def _point_to_newest(root: Path, snapshot: int, data: bytes) -> None:
    """Make ``guideloom.json`` the manifest of the newest snapshot, even if another commit does the same meanwhile.

    Whoever replaces it looks for a newer snapshot afterwards, so that the last to replace it leaves the newest.
    """
    while True:
        write_file(root / MANIFEST_NAME, data, replace=True)
        newest = _newest_snapshot(root)
        if newest is None or newest <= snapshot:
            return
        snapshot = newest
        data = read_file(_snapshot_path(root, snapshot), max_bytes=MAX_MANIFEST_BYTES)


def _newest_snapshot(root: Path) -> int | None:
    names = list_folder(root / SNAPSHOTS_FOLDER)
    return max((int(name) for name in names if SNAPSHOT.fullmatch(name)), default=None)


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
