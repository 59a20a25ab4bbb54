"""Remove what no snapshot needs: remains of killed writers, shards and layers never committed, old snapshots.

Every order of removal leaves a whole dataset when it is cut short: a snapshot goes before the files that only it names,
and a shard's manifest, which makes it visible to commits, before its data.
"""

import contextlib
import dataclasses
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from guideloom._typing import PathLike
from guideloom.errors import GuideLoomError, MissingFileError, WriteError
from guideloom.storage.durable import is_temporary, list_folder, read_file, sync_folder, temporary_path
from guideloom.storage.history import read_manifest, snapshot_numbers
from guideloom.storage.manifest import MANIFEST_NAME, SNAPSHOTS_FOLDER, Manifest, snapshot_name
from guideloom.storage.names import CLAIMS_FOLDER, LAYER_SUFFIX, SHARD_SUFFIX, SHARDS_FOLDER, shard_of
from guideloom.storage.records import MAX_MANIFEST_BYTES, LayerEntry, LayerShardRecord, decode_record

DAY_SECONDS = 86_400.0

_PRUNED = "pruned"


@dataclasses.dataclass(frozen=True, slots=True)
class Remains:
    """Something that no snapshot needs.

    Parameters
    ----------
    path : str
        Name relative to the dataset, of a file or a folder.
    num_bytes : int
        Bytes in it.
    reason : str
        ``"temporary"``: a file that a killed writer or commit left. ``"uncommitted"``: of a shard, or of a layer of
        one, that no snapshot names. ``"claim"``: of a writer that is gone. ``"old snapshot"``: a snapshot that is not
        kept, or a file that only such a one names.
    """

    path: str
    num_bytes: int
    reason: Literal["temporary", "uncommitted", "claim", "old snapshot"]


def prune(
    location: PathLike, *, keep: int | None = None, min_age_seconds: float = DAY_SECONDS, dry_run: bool = False
) -> list[Remains]:
    """Remove what neither the current snapshot nor a kept one needs.

    What a writer, or a commit that is under way, may still need is told by its age, so `min_age_seconds` should be
    longer than any writer goes without writing. Shards and layers that were written and not committed go too when they
    are older: commit them first if they are wanted. A layer that is being added goes only as a whole, when the last
    shard of it that was written is that old. Files that GuideLoom did not make stay.

    Parameters
    ----------
    location : path
        Folder of the dataset.
    keep : int, optional
        How many snapshots to keep, the newest; all by default. A reader that is open on a snapshot that goes may fail.
    min_age_seconds : float, default one day
        How old the remains must be, by the last change of the file or of its name.
    dry_run : bool, default False
        Whether to find out only.

    Returns
    -------
    list of Remains
        What was removed, or would be, in that order.

    Raises
    ------
    ValueError
        If `keep` is less than 1, or `min_age_seconds` negative.
    MissingFileError
        If the folder holds no dataset.
    ManifestError
        If the manifest of a snapshot to keep cannot be read: nothing is removed.
    WriteError
        If something could not be removed.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep is {keep}; at least the current snapshot is kept")
    if min_age_seconds < 0:
        raise ValueError(f"min_age_seconds is {min_age_seconds}; an age is not negative")
    root = Path(os.path.abspath(location))
    plan = _Plan(root, keep, time.time() - min_age_seconds)
    if dry_run:
        return plan.temporary + plan.snapshots + plan.visible + plan.files
    return [*plan.carry_out()]


class _Plan:
    """What is to go: found first, and then removed in a safe order."""

    def __init__(self, root: Path, keep: int | None, before: float) -> None:
        self._root = root
        self._before = before
        numbers = snapshot_numbers(root)
        kept = numbers if keep is None else numbers[-keep:]
        self._old = [number for number in numbers if number not in kept]
        manifests = self._manifests(kept)
        if not manifests:
            raise MissingFileError(f"there is no dataset at {root}: it has no {MANIFEST_NAME}", path=MANIFEST_NAME)
        needed = _names_of(manifests)
        of_old = _names_of(self._readable(self._old)) - needed
        self.temporary = [*self._temporary(), *self._claims(manifests[-1])]
        self.snapshots = [self._remains(f"{SNAPSHOTS_FOLDER}/{number}", "old snapshot") for number in self._old]
        self.visible: list[Remains] = []
        self.files: list[Remains] = []
        known = needed | of_old
        young = self._young_shards(manifests[-1], known) | self._young_layers(manifests[-1], known)
        for name in list_folder(root / SHARDS_FOLDER):
            path = f"{SHARDS_FOLDER}/{name}"
            if shard_of(name.split(".")[0]) is None or path in needed or path in young:
                continue
            if path not in of_old and self._is_young(path):
                continue
            goes = self.visible if name.endswith(SHARD_SUFFIX) else self.files
            goes.append(self._remains(path, "old snapshot" if path in of_old else "uncommitted"))

    def carry_out(self) -> Iterator[Remains]:
        """Remove all of it, and yield each thing that is gone."""
        yield from self._remove(self.temporary)
        yield from self._remove(self.snapshots, synced=SNAPSHOTS_FOLDER)
        yield from self._remove(self.visible, synced=SHARDS_FOLDER)
        # A commit that began before those went may have read them, and shows itself by its folder, or by now has
        # published; one that begins from here on does not see them.
        if any(_is_commit(name) for name in list_folder(self._root / SNAPSHOTS_FOLDER)):
            return
        needed = _names_of(self._manifests(snapshot_numbers(self._root)))
        yield from self._remove([file for file in self.files if file.path not in needed], synced=SHARDS_FOLDER)

    def _manifests(self, numbers: Iterable[int]) -> list[Manifest]:
        found = []
        with contextlib.suppress(MissingFileError):
            found.append(read_manifest(self._root, MANIFEST_NAME))
        return found + [read_manifest(self._root, snapshot_name(number)) for number in numbers]

    def _readable(self, numbers: Iterable[int]) -> Iterator[Manifest]:
        for number in numbers:
            with contextlib.suppress(GuideLoomError):
                yield read_manifest(self._root, snapshot_name(number))

    def _temporary(self) -> Iterator[Remains]:
        for folder in ("", SHARDS_FOLDER, SNAPSHOTS_FOLDER, CLAIMS_FOLDER):
            for name in list_folder(self._root / folder):
                path = f"{folder}/{name}".lstrip("/")
                if is_temporary(name) and not self._is_young(path):
                    yield self._remains(path, "temporary")

    def _claims(self, manifest: Manifest) -> Iterator[Remains]:
        committed = {f"{shard.number:08d}" for shard in manifest.shards}
        for name in list_folder(self._root / CLAIMS_FOLDER):
            path = f"{CLAIMS_FOLDER}/{name}"
            if not is_temporary(name) and (name in committed or not self._is_young(path)):
                yield self._remains(path, "claim")

    def _young_shards(self, manifest: Manifest, known: set[str]) -> set[str]:
        """Return the files of shards that were published lately, all of them, whatever their own age."""
        young: set[str] = set()
        for path in self._shard_manifests(known):
            if path.endswith(LAYER_SUFFIX) or not self._is_young(path):
                continue
            with contextlib.suppress(GuideLoomError):
                data = read_file(self._root / path, max_bytes=MAX_MANIFEST_BYTES)
                young.update(file for file, _ in manifest.read_shard(data, path=path)[1])
        return young

    def _young_layers(self, manifest: Manifest, known: set[str]) -> set[str]:
        """Return the files of layers that are being added: all shards of one, if one was published lately.

        A layer is committed when all of its shards are written, and not before.
        """
        added: dict[str, list[tuple[str, LayerEntry]]] = {}
        for path in self._shard_manifests(known):
            if path.endswith(LAYER_SUFFIX):
                with contextlib.suppress(GuideLoomError):
                    data = read_file(self._root / path, max_bytes=MAX_MANIFEST_BYTES)
                    record = decode_record(data, LayerShardRecord, path=path)
                    added.setdefault(record.layer.name, []).append((path, record.entry))
        young: set[str] = set()
        for name, found in added.items():
            ages = [self._is_young(path) for path, _ in found]
            is_committed = name in manifest.layer_names
            for (path, entry), is_young in zip(found, ages, strict=True):
                if is_young or (any(ages) and not is_committed):
                    young.update((path, entry.file, entry.checksums, entry.payloads))
        return young

    def _shard_manifests(self, known: set[str]) -> list[str]:
        """Return the names of the manifests of shards and layers that no snapshot names."""
        names = [name for name in list_folder(self._root / SHARDS_FOLDER) if name.endswith(SHARD_SUFFIX)]
        paths = [f"{SHARDS_FOLDER}/{name}" for name in names if not is_temporary(name)]
        return [path for path in paths if path not in known]

    def _is_young(self, path: str) -> bool:
        """Whether something, or what is in it, was written lately; also if it is gone or cannot be looked at."""
        try:
            paths = [self._root / path, *(self._root / path / name for name in list_folder(self._root / path))]
            found = [os.lstat(each) for each in paths]
        except (OSError, GuideLoomError):
            return True
        # The change of a name, as when a file is published, counts too.
        return max(max(status.st_mtime, status.st_ctime) for status in found) > self._before

    def _remains(self, path: str, reason: Literal["temporary", "uncommitted", "claim", "old snapshot"]) -> Remains:
        num_bytes = 0
        for place in (self._root / path, *(self._root / path / name for name in list_folder(self._root / path))):
            with contextlib.suppress(OSError):
                status = os.lstat(place)
                num_bytes += status.st_size * stat.S_ISREG(status.st_mode)
        return Remains(path, num_bytes, reason)

    def _remove(self, remains: Iterable[Remains], *, synced: str | None = None) -> Iterator[Remains]:
        gone = False
        for each in remains:
            path = self._root / each.path
            try:
                try:
                    os.unlink(path)
                except (IsADirectoryError, PermissionError):  # Linux says the one of a folder, POSIX the other
                    _remove_folder(path)
            except FileNotFoundError:  # somebody else was faster
                continue
            except OSError as error:
                message = f"{path} cannot be removed: {error.strerror}"
                raise WriteError(message, path=str(path), errno=error.errno) from error
            gone = True
            yield each
        if gone and synced is not None:
            sync_folder(self._root / synced)


def _names_of(manifests: Iterable[Manifest]) -> set[str]:
    """Return the names of all files that belong to these snapshots, shard manifests included."""
    names: set[str] = set()
    for manifest in manifests:
        for shard in manifest.shards:
            names.update(name for name, _ in manifest.files_of(shard))
            names.update(manifest.shard_manifests_of(shard))
    return names


def _is_commit(name: str) -> bool:
    return is_temporary(name) and not name.startswith(f".{_PRUNED}.")


def _remove_folder(path: Path) -> None:
    """Remove a folder that nobody sees half of: it loses its name first."""
    hidden = temporary_path(path.with_name(_PRUNED))
    os.rename(path, hidden)
    shutil.rmtree(hidden)
