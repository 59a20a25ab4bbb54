"""Datasets for tests, made in memory without the library's writer, so that any layout can be had, and at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._typing import AnyArray
from guideloom.formats.schema import Schema
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import FileEntry, ShardEntry
from guideloom.storage.stream_manifest import StreamManifest

Files = dict[str, bytes]


def shards_of(rows: AnyArray, lengths: Sequence[int]) -> list[AnyArray]:
    """Cut rows into shards of these lengths."""
    return np.split(rows, np.cumsum(lengths)[:-1])


def counted(lengths: Sequence[int], dtype: Any = "<u2") -> list[AnyArray]:
    """Shards in which the element at position p of the whole stream has value p, as far as the dtype goes."""
    positions = np.arange(sum(lengths)).astype(dtype)
    return shards_of(positions, lengths) if lengths else []


def stream_files(
    shards: Sequence[AnyArray], dtype: Any = None, *, groups: Sequence[Sequence[str]] = (), byte_offset: int = 0
) -> Files:
    """Return the files of a dataset by name.

    Parameters
    ----------
    shards : sequence of array
        The rows of each shard, of one dtype, in any byte order.
    dtype : dtype, optional
        That dtype, where there may be no shard.
    groups : sequence of sequences of str
        The fields of each column group; they lie side by side in the dtype. One group by default.
    byte_offset : int
        Bytes of rubbish before the rows in each file, as an adopted file may have.
    """
    schema = Schema.of(shards[0].dtype if dtype is None else dtype)
    names = [tuple(group) for group in groups] or [schema.names]
    bases = [0, *(min(schema[name].offset for name in group) for group in names[1:]), schema.row_bytes]
    parts = tuple(
        schema.part(group, base=low, row_bytes=high - low)
        for group, low, high in zip(names, bases[:-1], bases[1:], strict=True)
    )
    files: Files = {}
    entries = []
    for number, shard in enumerate(shards):
        columns = {name: shard[name] if shard.dtype.names else shard for name in schema.names}
        stored = []
        for part_number, part in enumerate(parts):
            rows = np.zeros(len(shard), part.dtype)
            for name in part.names:
                rows[name] = columns[name]
            stem = f"shards/{number:05d}-{part_number}"
            data = b"\xa5" * byte_offset + rows.tobytes()
            seed = 1000 * number + part_number
            checksums = BlockChecksums(file_seed=seed)
            checksums.update(data)
            files[f"{stem}.bin"], files[f"{stem}.crc32c"] = data, checksums.finish()
            sha256 = hashlib.sha256(rows.tobytes()).hexdigest()
            stored.append(FileEntry(f"{stem}.bin", byte_offset, len(data), sha256, f"{stem}.crc32c", seed))
        entries.append(ShardEntry(number, len(shard), tuple(stored)))
    files[MANIFEST_NAME] = encode_manifest(StreamManifest(schema, parts, tuple(entries), 1))
    return files


def store(files: Mapping[str, bytes], root: Path) -> Path:
    """Write files below a folder, without a thought of crashes."""
    for folder in {Path(name).parent for name in files}:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root
