"""Which shards have been written, and how they join those that are committed."""

import itertools
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from guideloom.errors import ShardError
from guideloom.storage.durable import list_folder, read_file
from guideloom.storage.manifest import Manifest, Shard
from guideloom.storage.names import DATA_SUFFIX, SHARD_SUFFIX, SHARDS_FOLDER, shard_of

_MAX_SHARD_MANIFEST_BYTES = 1024 * 1024
_MAX_NAMED = 20


def written_shards(root: Path) -> dict[str, int]:
    """Return the names of the shard manifests in a dataset, each with the number of its shard.

    A shard manifest is the last file of a shard to appear, so these shards are whole.
    """
    names = list_folder(root / SHARDS_FOLDER)
    numbers = {name: shard_of(name.removesuffix(SHARD_SUFFIX)) for name in names if name.endswith(SHARD_SUFFIX)}
    return {name: number for name, number in numbers.items() if number is not None}


def merge_shards(root: Path, manifest: Manifest) -> tuple[Shard, ...]:
    """Return the shards of the next snapshot: those of `manifest`, and those written since.

    Shards of one number and the same content count once, since a writer may have been run again.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    manifest : Manifest
        Its newest snapshot.

    Returns
    -------
    tuple of shards
        In the order of their numbers.

    Raises
    ------
    ShardError
        If two shards of one number differ, a shard has another schema, a file of it is missing or of another size, or
        numbers are missing before the last.
    ManifestError
        If a shard manifest cannot be read.
    """
    merged: dict[int, Shard] = {shard.number: shard for shard in manifest.shards}
    committed = {os.path.basename(shard.first_file) for shard in manifest.shards}
    for name in written_shards(root):
        if name.removesuffix(SHARD_SUFFIX) + DATA_SUFFIX in committed:
            continue
        shard = _read_shard(root, name, manifest)
        known = merged.setdefault(shard.number, shard)
        if known.content != shard.content:
            _refuse_pair(known, shard)
    numbers = sorted(merged)
    gaps = (number for low, high in itertools.pairwise([-1, *numbers]) for number in range(low + 1, high))
    refuse_missing(gaps, count=max(numbers, default=-1) + 1 - len(numbers))
    return tuple(merged[number] for number in numbers)


def refuse_missing(missing: Iterable[int], *, count: int) -> None:
    """Raise `ShardError` naming the first of the `count` numbers that are missing, if there are any."""
    if count:
        first = list(itertools.islice(missing, _MAX_NAMED))
        more = f" and {count - len(first)} more" if count > len(first) else ""
        raise ShardError(
            f"shards are missing: {', '.join(map(str, first))}{more}; write them (`missing` lists what is left to do), "
            "then commit",
            shards=first,
        )


def _read_shard(root: Path, name: str, manifest: Manifest) -> Shard:
    path = root / SHARDS_FOLDER / name
    shard: Shard
    shard, files = manifest.read_shard(read_file(path, max_bytes=_MAX_SHARD_MANIFEST_BYTES), path=str(path))
    for file, num_bytes in files:
        check_size(root / file, num_bytes, shard.number)
    return shard


def check_size(path: Path, num_bytes: int, number: int) -> None:
    """Raise `ShardError` unless a file of a shard is there, regular, and of its size."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        found = "is missing"
    else:
        if stat.S_ISREG(status.st_mode) and status.st_size == num_bytes:
            return
        found = f"has {status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "is no regular file"
    raise ShardError(
        f"shard {number} is damaged: {path} {found}, and should have {num_bytes} bytes; remove its {SHARD_SUFFIX} "
        "file, and write the shard again",
        shards=[number],
    )


def _refuse_pair(first: Shard, second: Shard) -> None:
    raise ShardError(
        f"shard {first.number} was written twice with different content: {first.first_file} ({first.describe()}) and "
        f"{second.first_file} ({second.describe()}); remove the {SHARD_SUFFIX} file beside the wrong one",
        shards=[first.number],
    )
