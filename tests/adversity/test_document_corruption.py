"""Damage of every kind to a small dataset of documents: an error, or the right documents; never wrong ones."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import guideloom as gl
from guideloom.errors import GuideLoomError
from guideloom.storage.manifest import MANIFEST_NAME
from guideloom.storage.records import Compression
from tests.documents import document_files, manifest_of
from tests.streams import Files

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"

TEXT = gl.formats.Text()
ARRAYS = gl.formats.NumpyArrays({"a": "<i4", "b": "u1"})
TEXTS = [["alpha", "", "beta"], ["gamma " * 9, "δ"]]
VALUES = [
    [{"a": np.arange(n, dtype="<i4"), "b": np.full(2, n, "u1")} for n in (3, 0, 5)],
    [
        {"a": np.array([], "<i4"), "b": np.array([], "u1")},
        {"a": np.array([-1], "<i4"), "b": np.arange(40).astype("u1")},
    ],
]
CASES: list[tuple[Any, Any, Compression]] = [
    (TEXT, TEXTS, None),
    (TEXT, TEXTS, "zstd"),
    (ARRAYS, VALUES, None),
    (ARRAYS, VALUES, "zstd"),
    (gl.formats.NumpyArray("<u2"), [[np.arange(n, dtype="<u2") for n in (4, 0, 9)], [np.arange(2, dtype="<u2")]], None),
]


async def contents(files: Files) -> list[Any]:
    """Return each document that can be read, as plain types, or raise the error of opening."""
    dataset = gl.open_dataset(gl.MemoryBackend(files))
    found: list[Any] = []
    async with dataset.async_reader() as reader:
        for i in range(len(dataset)):
            try:
                document = await reader.read(i)
            except GuideLoomError:
                document = None
            if isinstance(document, dict):
                document = {name: (array.dtype.str, array.tolist()) for name, array in document.items()}
            found.append(document)
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize(("encoding", "shards", "compression"), CASES)
async def test_every_flipped_bit_of_a_shard_is_found(encoding: Any, shards: Any, compression: Compression) -> None:
    files = document_files(shards, encoding, compression)
    right = await contents(files)
    assert None not in right
    for name in files:
        if name == MANIFEST_NAME:
            continue
        for bit in range(0, 8 * len(files[name]), 1 if ALL else 5):
            damaged = bytearray(files[name])
            damaged[bit // 8] ^= 1 << bit % 8
            found = await contents({**files, name: bytes(damaged)})
            assert all(document in (None, expected) for document, expected in zip(found, right, strict=True))
            assert None in found, f"bit {bit} of {name} was not noticed"


@pytest.mark.asyncio
@pytest.mark.parametrize(("encoding", "shards", "compression"), CASES)
async def test_every_flipped_bit_of_the_manifest_is_harmless(
    encoding: Any, shards: Any, compression: Compression
) -> None:
    files = document_files(shards, encoding, compression)
    right = await contents(files)
    manifest = files[MANIFEST_NAME]
    for bit in range(0, 8 * len(manifest), 1 if ALL else 7):
        damaged = bytearray(manifest)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = await contents({**files, MANIFEST_NAME: bytes(damaged)})
        except GuideLoomError:
            continue
        assert all(document in (None, expected) for document, expected in zip(found, right, strict=True))


@pytest.mark.asyncio
@pytest.mark.parametrize(("encoding", "shards", "compression"), CASES)
async def test_files_of_any_other_length_are_found_or_harmless(
    encoding: Any, shards: Any, compression: Compression
) -> None:
    files = document_files(shards, encoding, compression)
    right = await contents(files)
    for name in files:
        if name == MANIFEST_NAME:
            continue
        for size in range(len(files[name])):
            found = await contents({**files, name: files[name][:size]})
            assert all(document in (None, expected) for document, expected in zip(found, right, strict=True))
            assert None in found
        assert await contents({**files, name: files[name] + b"more"}) == right
    for size in range(len(files[MANIFEST_NAME]) - 1):
        with pytest.raises(GuideLoomError):
            await contents({**files, MANIFEST_NAME: files[MANIFEST_NAME][:size]})


@pytest.mark.asyncio
async def test_files_of_another_shard_and_dataset_are_found() -> None:
    documents = [[b"0123456789"] * 40, [b"9876543210"] * 40]
    files, others = (document_files(shards, gl.formats.Bytes()) for shards in (documents, documents[::-1]))
    for shard in range(2):
        for part in ("data", "index"):
            here = getattr(manifest_of(files).shards[shard], part).file
            for source, number in ((files, 1 - shard), (others, shard)):
                there = getattr(manifest_of(source).shards[number], part).file
                found = await contents({**files, here: source[there]})
                assert found[40 * shard : 40 * shard + 40] == [None] * 40
                assert found[40 - 40 * shard : 80 - 40 * shard] == documents[1 - shard]


@pytest.mark.asyncio
async def test_documents_and_rows_that_changed_places_are_found() -> None:
    files = document_files([[b"0123456789"] * 8], gl.formats.Bytes())
    manifest = manifest_of(files)
    entry, size = manifest.shards[0], manifest.index_dtype.itemsize
    for i in range(7):
        rows = bytearray(files[entry.index.file])
        rows[size * i : size * (i + 2)] = rows[size * (i + 1) : size * (i + 2)] + rows[size * i : size * (i + 1)]
        found = await contents({**files, entry.index.file: bytes(rows)})
        assert found[i] is found[i + 1] is None
        assert {document for document in found if document is not None} <= {b"0123456789"}
