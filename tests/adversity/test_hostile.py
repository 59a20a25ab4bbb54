"""Datasets made to do harm: an error of ours, in bounded time and memory, and no code of theirs is run."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import stat
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import guideloom as gl
from guideloom.errors import BackendError, GuideLoomError, ManifestError
from guideloom.storage.document_index import MOST_INDEX_BYTES
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME
from tests.damage import LAYOUTS, Layout, is_read
from tests.documents import forged, manifest_of
from tests.streams import Files, store

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"
FILES: dict[str, Files] = {name: layout.files(4096) for name, layout in LAYOUTS.items()}

# An index within the budget is made room for before its file is found to be shorter.
MOST_MEMORY = 2**26 + MOST_INDEX_BYTES

NUMBERS = [
    0,
    1,
    2,
    20,
    4095,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53 + 1,
    2**58,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    2**70,
]
TEXTS = [
    "", ".", "..", "../x", "shards/../../x", "/etc/passwd", "//host/x", "C:\\x", "http://x/y", "file:///etc/passwd",
    "shards", "shards/", "guideloom.json", "%2e%2e/x", "x\0y", "x" * 300, "\ud800", "0" * 64, "|O", "O", "object",
    "<U5", "|S3", "<M8[s]", "|V8", ">i4", "<i4", "<f16", "i4,(2**31,)i4", "json", "text", "bytes", "numpy-array",
    "numpy-rows", "zstd", "pickle", "os.system", "builtins:eval", "stream", "documents",
]  # fmt: skip
DEEP = json.loads("[" * 200 + "]" * 200)
hostile = st.one_of(
    st.sampled_from(NUMBERS).flatmap(lambda number: st.sampled_from([number, -number])),
    st.sampled_from([True, False, None, 1.5, 1e308, float("nan"), float("inf"), [], {}, [[]], DEEP]),
    st.sampled_from(TEXTS),
)


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with a few values replaced, removed, doubled, or put in the place of others."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 4))):
        places = list(places_in(document))
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["value", "value", "value", "other", "removed", "doubled"]))
        if how == "value":
            holder[key] = copy.deepcopy(draw(hostile))
        elif how == "other":
            other, its_key = draw(st.sampled_from(places))
            with contextlib.suppress(KeyError, IndexError, TypeError):
                holder[key] = copy.deepcopy(other[its_key])
        elif how == "removed":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[f"{key}2"] = copy.deepcopy(holder[key])
    return document


def places_in(value: Any, depth: int = 8) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON document that holds a value."""
    if depth and isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places_in(value[key], depth - 1)


def with_fingerprint(document: Any) -> bytes:
    """Return a manifest with the fingerprint of what it says, if it has one: its author can make that, too."""
    data = json.dumps(document).encode()
    with contextlib.suppress(GuideLoomError):
        try:
            load_manifest(data, path="m")
        except ManifestError as error:
            if found := re.search("content named is '(sha256:[0-9a-f]{64})'", str(error)):
                return json.dumps({**document, "fingerprint": found[1]}).encode()
    return data


def read_some(location: Any, layout: Layout) -> None:
    """Open a dataset, and read what there may be of it, with and without checks; errors of ours may come of it."""
    unchecked: dict[str, Any] = {"verify": False} if "window" in layout.options else {"encoding": gl.formats.Bytes()}
    for checks in ({}, unchecked):
        try:
            dataset: Any = gl.open_dataset(location, **{**layout.options, **checks})
        except (GuideLoomError, ValueError, TypeError):  # the manifest of another kind, to which no argument fits
            continue
        with dataset.sync_reader() as reader:
            for sample in {0, len(dataset) // 2, len(dataset) - 1} if len(dataset) else ():
                with contextlib.suppress(GuideLoomError):
                    reader.read(sample)
            with contextlib.suppress(GuideLoomError):
                reader.read_batch(slice(0, 4))


# What nobody may do on behalf of a file. A hook of the interpreter cannot be taken away, so it is told when to look.
CODE = (
    "exec", "compile", "import", "pickle.find_class", "marshal.", "code.", "ctypes.", "os.exec", "os.system", "os.fork",
    "os.posix_spawn", "subprocess.", "socket.",
)  # fmt: skip
watching = False
seen: list[str] = []


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and (event.startswith(CODE) or (event == "open" and str(arguments[0]).startswith(("/etc", "..")))):
        seen.append(f"{event} {arguments}")


@pytest.fixture(scope="module", autouse=True)
def _watched() -> None:
    for name, layout in LAYOUTS.items():  # what is imported with the first read of all
        read_some(gl.MemoryBackend(FILES[name]), layout)
    sys.addaudithook(_look)


@contextlib.contextmanager
def harmless(num_bytes: int) -> Iterator[None]:
    """See that so many bytes of input take little time and memory, and run no code."""
    global watching
    tracemalloc.start()
    begin = time.perf_counter()
    watching = True
    try:
        yield
        seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    finally:
        watching = False
        tracemalloc.stop()
    assert seconds < 10
    assert peak < MOST_MEMORY + 4 * num_bytes
    assert seen == []


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
@settings(max_examples=12_500 if ALL else 50)
def test_a_hostile_manifest_only_fails(name: str, data: st.DataObject) -> None:
    """M1, M2, M4: values of any kind anywhere, the fingerprint made to match: read in full, or an error."""
    manifest = with_fingerprint(data.draw(mutated(json.loads(FILES[name][MANIFEST_NAME]))))
    with harmless(len(manifest)):
        read_some(gl.MemoryBackend({**FILES[name], MANIFEST_NAME: manifest}), LAYOUTS[name])


def test_sizes_whose_sum_overflows_allocate_nothing() -> None:
    """M4, B2: each fits in 63 bits, and all together look small in 64."""
    documents = json.loads(FILES["text"][MANIFEST_NAME])
    for shard in documents["shards"]:
        shard["documents"] = 2**57
        shard["index"]["bytes"] = 20 * 2**57
    stream = json.loads(FILES["stream"][MANIFEST_NAME])
    shard = stream["shards"][3]
    stream["shards"] = []
    for number in range(2**14):
        file = {**shard["files"][0], "file": f"shards/{number}", "bytes": 2**63 - 1}
        stream["shards"].append({**shard, "number": number, "files": [file]})
    for name, document in (("text", documents), ("stream", stream)):
        manifest = with_fingerprint(document)
        with harmless(len(manifest)):
            dataset = LAYOUTS[name].open(gl.MemoryBackend({**FILES[name], MANIFEST_NAME: manifest}))
            with dataset.sync_reader() as reader, pytest.raises(BackendError):
                reader.read(len(dataset) - 1)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "window" not in LAYOUTS[name].options])
@given(data=st.data())
def test_a_hostile_index_only_fails(name: str, data: st.DataObject) -> None:
    """M4, M5: numbers of any size in its rows, all checksums made to match."""
    files, layout = FILES[name], LAYOUTS[name]
    manifest = manifest_of(files)
    entry = manifest.shards[0]
    rows = np.frombuffer(files[entry.index.file], manifest.index_dtype)
    columns: dict[str, Any] = {column: rows[column].copy() for column in ("end", "decoded_bytes", "counts")}
    numbers = st.sampled_from([*NUMBERS[:-1], entry.data.bytes, entry.data.bytes + 1, 2**64 - 1])
    for _ in range(data.draw(st.integers(1, 5))):
        column = columns[data.draw(st.sampled_from([name for name, values in columns.items() if values.size]))]
        value = data.draw(numbers) % 2 ** (8 * column.dtype.itemsize)
        column.reshape(-1)[data.draw(st.integers(0, column.size - 1))] = value
    hostile_files = forged(files, 0, **columns)
    with harmless(len(files[entry.index.file])):
        read_some(gl.MemoryBackend(hostile_files), layout)


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_a_hostile_shard_manifest_only_fails(name: str, data: st.DataObject) -> None:
    """M4, M11: one that somebody planted in a shared folder: no commit takes files in that it should not have."""
    path = next(path for path in FILES[name] if path.startswith("shards/00000003") and path.endswith(".json"))
    planted = json.dumps(data.draw(mutated(json.loads(FILES[name][path])))).encode()
    manifest = load_manifest(FILES[name][MANIFEST_NAME], path="m")
    with harmless(len(planted)), contextlib.suppress(GuideLoomError):
        shard, files = manifest.read_shard(planted, path=path)
        assert {file for file, _ in files} <= {file for file in FILES[name] if file.startswith(path.split(".")[0])}
        assert shard.number == 3


@pytest.mark.parametrize("kind", ["FIFO", "folder", "device", "loop", "link to /dev/zero", "link to itself"])
@pytest.mark.parametrize("name", ["stream", "layers", "json", "array"])
def test_what_is_no_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    """M3: in place of any file of a dataset."""
    layout, files = LAYOUTS[name], FILES[name]
    for number, path in enumerate(path for path in files if is_read(path, files)):
        root = store(files, tmp_path / str(number))
        (root / path).unlink()
        if kind == "FIFO":
            os.mkfifo(root / path)
        elif kind == "folder":
            (root / path).mkdir()
        elif kind == "device":
            os.mknod(root / path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        elif kind == "loop":
            (root / path).symlink_to("loop")
            (root / path).with_name("loop").symlink_to(Path(path).name)
        else:
            (root / path).symlink_to("/dev/zero" if kind == "link to /dev/zero" else Path(path).name)
        begin = time.perf_counter()
        with pytest.raises(GuideLoomError), layout.open(root).sync_reader() as reader:
            reader.read_batch(slice(None))
        assert time.perf_counter() - begin < 2
