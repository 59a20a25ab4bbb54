"""Datasets of documents for tests: written by the library, into memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import guideloom as gl
from guideloom._speedups.documents import document_checksums, row_checksums
from guideloom.storage.document_manifest import DocumentManifest, index_dtype
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import Compression
from tests.streams import Files


def document_files(shards: Sequence[Any], encoding: gl.formats.Encoding, compression: Compression = None) -> Files:
    """Return the files that a reader needs of a dataset of these documents, by name."""
    with tempfile.TemporaryDirectory() as folder:
        storage = gl.DocumentStorage.create(folder, encoding=encoding, compression=compression)
        for number, documents in enumerate(shards):
            with storage.writer(shard=number) as shard:
                shard.extend(documents)
        storage.commit()
        names = [name for name in Path(folder).rglob("*") if name.is_file() and name.suffix in (".bin", ".index")]
        files = {str(name.relative_to(folder)): name.read_bytes() for name in names}
        files[MANIFEST_NAME] = (Path(folder) / MANIFEST_NAME).read_bytes()
    return files


def opened(files: Files, **options: Any) -> gl.DocumentDataset:
    """Open a dataset that lies in memory."""
    dataset: gl.DocumentDataset = gl.open_dataset(gl.MemoryBackend(files), **options)
    return dataset


def manifest_of(files: Files) -> DocumentManifest:
    """Return the manifest of such files."""
    manifest = load_manifest(files[MANIFEST_NAME], path=MANIFEST_NAME)
    assert isinstance(manifest, DocumentManifest)
    return manifest


def forged(files: Files, shard: int, *, data: bytes | None = None, sealed: bool = True, **columns: Any) -> Files:
    """Return the files with other columns of a shard's index, and perhaps other data, all checksums made to match."""
    manifest = manifest_of(files)
    entry = manifest.shards[shard]
    rows = np.frombuffer(files[entry.index.file], index_dtype(len(manifest.sections))).copy()
    for name, values in columns.items():
        rows[name] = values
    stored = files[entry.data.file] if data is None else data
    if sealed:
        ends = rows["end"].astype(np.int64)
        for i, (begin, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            if 0 <= begin <= end <= len(stored):
                part = np.frombuffer(stored[begin:end], np.uint8)
                out = np.empty(1, np.uint32)
                size = np.array([len(part)], np.int64)
                document_checksums(part, size, file_seed=entry.data.checksum_seed, first=i, out=out)
                rows["checksum"][i] = out[0]
        raw = rows.view(np.uint8).reshape(len(rows), -1)
        out = np.empty(len(rows), np.uint32)
        row_checksums(raw, file_seed=entry.index.checksum_seed, first=0, out=out)
        rows["row_checksum"] = out
    changed = {**files, entry.index.file: rows.tobytes(), entry.data.file: stored}
    document = json.loads(encode_manifest(manifest))
    document["shards"][shard]["data"]["bytes"] = len(stored)
    if manifest.compression is None:
        document["shards"][shard]["decoded_bytes"] = len(stored)
    changed[MANIFEST_NAME] = json.dumps(document).encode()
    return changed
