"""The snapshots of a dataset that a folder holds."""

import contextlib
import dataclasses
import os
from pathlib import Path

from guideloom._typing import PathLike
from guideloom.errors import GuideLoomError, MissingFileError
from guideloom.storage.durable import list_folder, read_file
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME, SNAPSHOTS_FOLDER, Manifest, snapshot_name
from guideloom.storage.names import SNAPSHOT
from guideloom.storage.records import MAX_MANIFEST_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a dataset.

    Parameters
    ----------
    number : int
        Its number; 0 is the dataset before its first commit.
    committed : float or None
        When, in seconds since 1970, as far as the file of its manifest tells: a copy may not.
    shards : int
        Shards in it.
    layers : tuple of str
        Names of its annotation layers.
    num_bytes : int
        Bytes of the data in the shards, without the layers.
    fingerprint : str or None
        Of its content; None if its manifest cannot be read.
    is_current : bool
        Whether it is the one that readers get.
    """

    number: int
    committed: float | None
    shards: int
    layers: tuple[str, ...]
    num_bytes: int
    fingerprint: str | None
    is_current: bool


def list_snapshots(location: PathLike) -> list[Snapshot]:
    """Return the snapshots of a dataset that its folder holds, the oldest first.

    Parameters
    ----------
    location : path
        The folder.

    Raises
    ------
    MissingFileError
        If it holds no dataset.
    ReadError
        If it cannot be read.
    """
    root = Path(os.path.abspath(location))
    current: Manifest | None = None
    with contextlib.suppress(MissingFileError):
        current = read_manifest(root, MANIFEST_NAME)
    numbers = snapshot_numbers(root)
    if current is None and not numbers:
        raise MissingFileError(f"there is no dataset at {root}: it has no {MANIFEST_NAME}", path=MANIFEST_NAME)
    found = []
    for number in sorted({*numbers, *([] if current is None else [current.snapshot])}):
        is_current = current is not None and number == current.snapshot
        name = snapshot_name(number) if number in numbers else MANIFEST_NAME
        manifest: Manifest | None = None
        with contextlib.suppress(GuideLoomError):
            manifest = read_manifest(root, name)
        found.append(
            Snapshot(
                number,
                _modified(root / name),
                0 if manifest is None else len(manifest.shards),
                () if manifest is None else manifest.layer_names,
                0 if manifest is None else manifest.num_bytes,
                None if manifest is None else manifest.fingerprint,
                is_current,
            )
        )
    return found


def read_manifest(root: Path, name: str) -> Manifest:
    """Return a manifest of a dataset on a file system.

    Raises
    ------
    MissingFileError, ManifestError, ReadError
        If there is none, or it cannot be read.
    """
    return load_manifest(read_file(root / name, max_bytes=MAX_MANIFEST_BYTES), path=str(root / name))


def snapshot_numbers(root: Path) -> list[int]:
    """Return the numbers of the snapshots in a folder, in order."""
    return sorted(int(name) for name in list_folder(root / SNAPSHOTS_FOLDER) if SNAPSHOT.fullmatch(name))


def _modified(path: Path) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
