"""Which shards have been written, and how they join those that are committed."""

import itertools
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from guideloom.errors import ManifestError, ShardError
from guideloom.storage.checksums import BLOCK_BYTES
from guideloom.storage.durable import list_folder, read_file
from guideloom.storage.group_file import CHECKSUMS_SUFFIX, DATA_SUFFIX, SHARDS_FOLDER
from guideloom.storage.manifest import Manifest, ShardEntry
from guideloom.storage.records import ShardRecord, decode_record, group_records
from guideloom.storage.writer import SHARD_SUFFIX

_MAX_SHARD_MANIFEST_BYTES = 1024 * 1024
_MAX_NAMED = 20
_SHARD_MANIFEST = re.compile(rf"(\d{{8}})-[0-9a-f]{{32}}{re.escape(SHARD_SUFFIX)}", re.ASCII)


def written_shards(root: Path) -> dict[str, int]:
    """Return the names of the shard manifests in a dataset, each with the number of its shard.

    A shard manifest is the last file of a shard to appear, so these shards are whole.
    """
    names = list_folder(root / SHARDS_FOLDER)
    return {name: int(match[1]) for name in names if (match := _SHARD_MANIFEST.fullmatch(name))}


def merge_shards(root: Path, manifest: Manifest) -> tuple[ShardEntry, ...]:
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
    tuple of ShardEntry
        In the order of their numbers.

    Raises
    ------
    ShardError
        If two shards of one number differ, a shard has another schema, a file of it is missing or of another size, or
        numbers are missing before the last.
    ManifestError
        If a shard manifest cannot be read.
    """
    merged = {shard.number: shard for shard in manifest.shards}
    committed = {os.path.basename(entry.file) for shard in manifest.shards for entry in shard.files}
    for name in written_shards(root):
        if name.removesuffix(SHARD_SUFFIX) + DATA_SUFFIX in committed:
            continue
        shard = _read_shard(root, name, manifest)
        known = merged.setdefault(shard.number, shard)
        if _content(known) != _content(shard):
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


def _read_shard(root: Path, name: str, manifest: Manifest) -> ShardEntry:
    path = root / SHARDS_FOLDER / name
    record = decode_record(read_file(path, max_bytes=_MAX_SHARD_MANIFEST_BYTES), ShardRecord, path=str(path))
    shard = record.shard
    if record.schema != manifest.schema.record or record.groups != group_records(manifest.groups):
        raise ShardError(
            f"{path} has rows of {record.schema}, but the dataset has {manifest.schema.record}; remove the file, and "
            "write the shard again",
            shards=[shard.number],
        )
    if not _is_regular(shard, name, manifest):
        raise ManifestError(f"{path} does not describe the shard it is named for; remove it", path=str(path))
    for entry in shard.files:
        num_blocks = -(-entry.bytes // BLOCK_BYTES)
        for file, num_bytes in ((entry.file, entry.bytes), (entry.checksums, 4 * (num_blocks + 1))):
            _check_size(root / file, num_bytes, shard.number)
    return shard


def _is_regular(shard: ShardEntry, name: str, manifest: Manifest) -> bool:
    """Whether a shard is as a writer makes it, so that a planted manifest can neither name nor claim other files."""
    if len(shard.files) != len(manifest.groups):
        return False
    for index, (group, entry) in enumerate(zip(manifest.groups, shard.files, strict=True)):
        stem = entry.file.removeprefix(f"{SHARDS_FOLDER}/").removesuffix(DATA_SUFFIX)
        match = _SHARD_MANIFEST.fullmatch(stem + SHARD_SUFFIX)
        if (
            match is None
            or int(match[1]) != shard.number
            or (index == 0 and stem + SHARD_SUFFIX != name)
            or entry.file != f"{SHARDS_FOLDER}/{stem}{DATA_SUFFIX}"
            or entry.checksums != f"{SHARDS_FOLDER}/{stem}{CHECKSUMS_SUFFIX}"
            or entry.checksum_seed != int(stem[9:17], 16)
            or (entry.byte_offset, entry.bytes) != (0, shard.rows * group.row_bytes)
        ):
            return False
    return True


def _check_size(path: Path, num_bytes: int, number: int) -> None:
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


def _content(shard: ShardEntry) -> tuple[int, list[str]]:
    return shard.rows, [entry.sha256 for entry in shard.files]


def _refuse_pair(first: ShardEntry, second: ShardEntry) -> None:
    raise ShardError(
        f"shard {first.number} was written twice with different content: {first.files[0].file} ({first.rows} rows) and "
        f"{second.files[0].file} ({second.rows} rows); remove the {SHARD_SUFFIX} file beside the wrong one",
        shards=[first.number],
    )
