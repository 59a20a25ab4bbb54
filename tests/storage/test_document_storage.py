"""Writing documents: what a shard holds, what is refused, and what a commit makes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.errors import (
    ClosedError,
    ManifestError,
    MissingFileError,
    ShardError,
    UnknownEncodingError,
    UnsafePathError,
    WriteError,
)
from guideloom.formats.jagged import Jagged
from guideloom.storage import document_writer
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from tests.documents import document_files, manifest_of
from tests.storage.stream_files import files, intercepted


def create(path: Path, encoding: gl.formats.Encoding | None = None, **options: Any) -> gl.DocumentStorage:
    return gl.DocumentStorage.create(path, encoding=encoding or gl.formats.Bytes(), **options)


def write(storage: gl.DocumentStorage, shard: int, *documents: Any) -> None:
    with storage.writer(shard=shard) as writer:
        writer.extend(documents)


def test_the_files_are_as_the_format_page_says(tmp_path: Path) -> None:
    """Read with NumPy and another library's checksum alone."""
    storage = create(tmp_path, gl.formats.NumpyArrays({"a": "<i2", "b": "u1"}))
    write(storage, 0, {"a": [1, 2], "b": [7]}, {"a": [], "b": []}, {"a": [-1], "b": [8, 9]})
    storage.commit()
    manifest = json.loads((tmp_path / MANIFEST_NAME).read_text())
    shard = manifest["shards"][0]
    data, index = ((tmp_path / shard[part]["file"]).read_bytes() for part in ("data", "index"))
    documents = [b"\2\0\0\0\1\0\2\0\7", b"\0\0\0\0", b"\1\0\0\0\xff\xff\x08\x09"]
    assert data == b"".join(documents)
    assert hashlib.sha256(data).hexdigest() == shard["data"]["sha256"]
    content = b""
    for i, (document, counts, end) in enumerate(zip(documents, ([2, 1], [0, 0], [1, 2]), (9, 13, 21), strict=True)):
        row = index[28 * i : 28 * i + 28]
        assert int.from_bytes(row[:8], "little") == end
        assert np.frombuffer(row[8:20], "<u4").tolist() == [len(document), *counts]
        for part, seed, checksum in ((document, shard["data"], row[20:24]), (row[:24], shard["index"], row[24:])):
            head = seed["checksum_seed"].to_bytes(4, "little") + i.to_bytes(8, "little")
            assert google_crc32c.value(head + part) == int.from_bytes(checksum, "little")
        content += row[:20]
    assert hashlib.sha256(content).hexdigest() == shard["index"]["sha256"]
    assert (shard["documents"], shard["decoded_bytes"]) == (3, 21)


@given(st.lists(st.lists(st.binary(max_size=30), max_size=6), min_size=1, max_size=4), st.data())
def test_the_fingerprint_is_that_of_the_documents(shards: list[list[bytes]], data: st.DataObject) -> None:
    first, second = (manifest_of(document_files(shards, gl.formats.Bytes())) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert [entry.data.file for entry in first.shards] != [entry.data.file for entry in second.shards]
    changed = [list(shard) for shard in shards]
    changed[data.draw(st.integers(0, len(shards) - 1))].append(b"")
    assert manifest_of(document_files(changed, gl.formats.Bytes())).fingerprint != first.fingerprint
    assert load_manifest(encode_manifest(first), path="m") == first


def test_missing_commit_and_rerun(tmp_path: Path) -> None:
    storage = create(tmp_path)
    write(storage, 1, b"b")
    assert storage.missing(range(3)) == [0, 2]
    with pytest.raises(ShardError, match="shards are missing: 0"):
        storage.commit()
    write(storage, 0, b"a")
    write(storage, 0, b"a")  # the same task, run again
    assert storage.commit() == 1
    again = gl.DocumentStorage.open(tmp_path)
    with pytest.raises(ShardError, match="committed"):
        again.writer(shard=1)
    write(again, 2, b"c", b"")
    assert again.commit() == 2
    with gl.open_dataset(tmp_path).sync_reader() as reader:
        assert list(reader) == [b"a", b"b", b"c", b""]
    assert len(gl.open_dataset(tmp_path, snapshot=1)) == 2


def test_unequal_duplicates_are_refused_naming_both(tmp_path: Path) -> None:
    storage = create(tmp_path)
    write(storage, 0, b"a")
    write(storage, 0, b"b", b"c")
    with pytest.raises(ShardError, match=r"shard 0 was written twice .*\(\d documents\).*\(\d documents\)") as caught:
        storage.commit()
    assert caught.value.shards == [0]


def test_a_shard_of_another_encoding_is_refused(tmp_path: Path) -> None:
    storage = create(tmp_path / "a")
    other = create(tmp_path / "b", gl.formats.Text())
    write(other, 0, "text")
    for path in (tmp_path / "b" / "shards").iterdir():
        path.rename(tmp_path / "a" / "shards" / path.name)
    with pytest.raises(ShardError, match=r"holds documents of .*text"):
        storage.commit()


def test_another_kind_of_storage_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "documents").commit()
    gl.StreamStorage.create(tmp_path / "stream", dtype="<i4").commit()
    with pytest.raises(ManifestError, match="kind 'documents', which StreamStorage does not write"):
        gl.StreamStorage.open(tmp_path / "documents")
    with pytest.raises(ManifestError, match="kind 'stream', which DocumentStorage does not write"):
        gl.DocumentStorage.open(tmp_path / "stream")
    with pytest.raises(MissingFileError, match=r"DocumentStorage\.create makes one"):
        gl.DocumentStorage.open(tmp_path / "nothing")


def test_an_unregistered_encoding_can_be_written_only_where_it_was_given(tmp_path: Path) -> None:
    class Local(gl.formats.Bytes):
        name = "tests.local"

    storage = create(tmp_path, Local())
    write(storage, 0, b"x")
    with pytest.raises(UnknownEncodingError, match=r"tests\.local"):
        gl.DocumentStorage.open(tmp_path).writer(shard=1)


def test_what_is_no_encoding_or_compression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"encoding is what guideloom\.formats has"):
        gl.DocumentStorage.create(tmp_path, encoding="json")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compression is None or 'zstd', not 'gzip'"):
        gl.DocumentStorage.create(tmp_path, encoding=gl.formats.JSON(), compression="gzip")  # type: ignore[arg-type]
    assert files(tmp_path) == set()


def test_a_refused_document_leaves_the_writer_as_it_was(tmp_path: Path) -> None:
    storage = create(tmp_path, gl.formats.NumpyArray("<u2"))
    with storage.writer(shard=0) as shard:
        shard.append([1, 2])
        with pytest.raises(ValueError, match="70000"):
            shard.append([70_000])
        with pytest.raises(ValueError, match="-1"):
            shard.extend(Jagged(np.array([3, -1]), np.array([0, 1, 2])))
        with pytest.raises(ValueError, match="do not make documents"):
            shard.extend({"other": Jagged(np.array([3]), np.array([0, 1]))})
        shard.extend(Jagged(np.array([3, 4]), np.array([0, 0, 2])))
        assert shard.documents == 3
    storage.commit()
    with gl.open_dataset(tmp_path).sync_reader() as reader:
        assert [row["tokens"].tolist() for row in reader] == [[1, 2], [], [3, 4]]


def test_fields_of_other_lengths_are_refused(tmp_path: Path) -> None:
    storage = create(tmp_path, gl.formats.Rows([("a", "<i4"), ("b", "<i4")]))
    with storage.writer(shard=0) as shard, pytest.raises(ValueError, match="'b' and 'a' differ in length"):
        shard.extend({"a": Jagged(np.arange(2), np.array([0, 2])), "b": Jagged(np.arange(2), np.array([0, 1, 2]))})
    other = create(tmp_path / "x", gl.formats.NumpyArrays({"a": "<i4", "b": "<i4"}))
    with other.writer(shard=0) as shard, pytest.raises(ValueError, match="'a' has 1 documents, 'b' 2"):
        shard.extend({"a": Jagged(np.arange(2), np.array([0, 2])), "b": Jagged(np.arange(2), np.array([0, 1, 2]))})


def test_a_document_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_writer, "MAX_DOCUMENT_BYTES", 10)
    with create(tmp_path).writer(shard=0) as shard:
        shard.append(b"x" * 10)
        with pytest.raises(ValueError, match="11 bytes is longer than 10"):
            shard.append(b"x" * 11)


def test_an_error_or_abort_leaves_nothing(tmp_path: Path) -> None:
    storage = create(tmp_path)
    before = files(tmp_path)
    with pytest.raises(ZeroDivisionError), storage.writer(shard=0) as shard:  # noqa: PT012 - as a caller writes it
        shard.append(b"x")
        raise ZeroDivisionError
    shard = storage.writer(shard=0)
    shard.append(b"x")
    shard.abort()
    with pytest.raises(ClosedError):
        shard.append(b"y")
    assert files(tmp_path) == before


def test_a_failure_of_any_system_call_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_writer, "_BUFFER_BYTES", 8)
    number = 0
    while True:
        storage = create(tmp_path / str(number))
        before = files(storage.path)
        failed = False

        def act(count: int, name: str, call: Callable[[], Any], number: int = number) -> Any:
            nonlocal failed
            if count == number + 1 and name != "unlink":
                failed = True
                raise OSError(28, "No space left on device")
            return call()

        try:
            with intercepted(act):
                write(storage, 0, b"first document", b"", b"second")
        except WriteError:
            left = files(storage.path) - before
            assert not any(name.endswith(".json") for name in left)
            assert storage.missing(range(1)) == [0]
        else:
            if not failed:
                break
        number += 1
    assert number > 10


def manifest() -> dict[str, Any]:
    data = document_files([[{"a": [1], "b": [2]}], []], gl.formats.NumpyArrays({"a": "<i4", "b": "u1"}))[MANIFEST_NAME]
    document: dict[str, Any] = json.loads(data)
    return document


def put(*path: Any) -> Callable[[Any], None]:
    *parents, key, value = path

    def change(document: Any) -> None:
        for parent in parents:
            document = document[parent]
        document[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("shards", 0, "documents", 2), "index has 28 bytes; 2 rows of 28 bytes take 56"),
        (put("shards", 0, "documents", -1), "documents"),
        (put("shards", 0, "documents", 2**63 - 1), "index has"),
        (put("shards", 0, "decoded_bytes", 8), "data has 9 bytes, but its documents have 8"),
        (put("shards", 0, "data", "bytes", 2**63 - 1), "data has"),
        (put("shards", 0, "data", "checksum_seed", 2**32), "checksum_seed"),
        (put("shards", 0, "data", "sha256", "G" * 64), "SHA-256"),
        (put("shards", 0, "index", "sha256", "0" * 63), "sha256"),
        (put("shards", 0, "data", "file", "shards/x\x00"), "control"),
        (put("shards", 0, "data", "file", "../x"), r"shards\[0\]"),
        (put("shards", 0, "index", "file", "/etc/passwd"), "absolute"),
        (put("shards", 0, "more", 1), "more"),
        (put("shards", 1, "number", 0), "numbers must increase"),
        (put("encoding", "name", "../os"), "no name of an encoding"),
        (put("encoding", "options", []), "options"),
        (put("encoding", "options", {"a": 2**70}), "64 bits"),
        (put("encoding", "options", {"a": 1}), "changed"),
        (put("sections", []), "index has"),
        (put("sections", 0, "fields", 0, "dtype", "|O"), r"\|O"),
        (put("sections", 0, "itemsize", 2**40), "row"),
        (put("compression", "gzip"), "compression"),
        (put("compression", "zstd"), "changed"),
        (put("fingerprint", "sha256:" + "0" * 64), "changed"),
        (put("kind", "stream"), "stream|schema|unknown|missing"),
        (put("version", 1), "version is 1.*upgrade"),
        (put("requires", ["x"]), "requires.*upgrade"),
    ],
)
def test_contradictions_are_refused_and_named(change: Callable[[Any], Any], message: str) -> None:
    document = manifest()
    change(document)
    with pytest.raises((ManifestError, UnsafePathError), match=message):
        load_manifest(json.dumps(document).encode(), path="somewhere")


def test_two_shards_of_one_file_are_refused() -> None:
    document = manifest()
    document["shards"][1]["index"]["file"] = document["shards"][0]["index"]["file"]
    with pytest.raises(ManifestError, match="two shards name the file"):
        load_manifest(json.dumps(document).encode(), path="somewhere")
