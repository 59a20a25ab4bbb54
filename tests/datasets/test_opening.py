"""Opening a dataset: from its manifest alone, in this process or another."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import guideloom as gl
from guideloom.datasets.grid import WindowGrid
from guideloom.datasets.stream import StreamDataset
from guideloom.errors import BackendError, GuideLoomError, ManifestError, MissingFileError
from guideloom.formats.schema import Schema
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import FileEntry, ShardEntry
from guideloom.storage.stream_manifest import StreamManifest
from tests.datasets.opened import OneMethod, in_memory
from tests.streams import counted, store, stream_files

SHA256 = "0" * 64


def written(path: Path, lengths: list[int]) -> gl.StreamStorage:
    """A dataset as the library writes it."""
    storage = gl.StreamStorage.create(path, dtype="<u2")
    for number, part in enumerate(counted(lengths)):
        with storage.writer(shard=number) as shard:
            shard.append(part)
    storage.commit()
    return storage


def manifest_of(num_shards: int, rows: int) -> StreamManifest:
    """The manifest of shards that need not exist."""
    schema = Schema.of("<i4")
    shards = tuple(
        ShardEntry(i, rows, (FileEntry(f"shards/{i:08d}.bin", 0, 4 * rows, SHA256, f"shards/{i:08d}.crc32c", i),))
        for i in range(num_shards)
    )
    return StreamManifest(schema, (schema,), shards, 1)


class Replaced(gl.MemoryBackend):
    """Shows the manifest cut short, so many times, as a network file system may that is just replacing it."""

    times = 0
    reads = 0

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        self.reads += 1
        data = await super().read_file(path, max_bytes=max_bytes)
        return data[: -100 - self.reads] if self.reads <= self.times else data


@pytest.mark.parametrize("times", [1, 2])
def test_a_manifest_that_is_being_replaced_is_read_again(times: int) -> None:
    backend = Replaced(stream_files(counted([10])))
    backend.times = times
    assert len(gl.open_dataset(backend, window=10)) == 1
    assert backend.reads == times + 1
    backend.files = {MANIFEST_NAME: b"{"}
    backend.times = backend.reads = 0
    with pytest.raises(ManifestError):
        gl.open_dataset(backend, window=10)
    assert backend.reads == 2


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    written(tmp_path, [100, 0, 30])
    for location in (tmp_path, str(tmp_path), tmp_path.as_uri(), gl.LocalBackend(tmp_path)):
        dataset = gl.open_dataset(location, window=13)
        assert len(dataset) == 10
        assert dataset.stride == 13
        with dataset.sync_reader() as reader:
            assert reader[:]["tokens"].reshape(-1).tolist() == list(range(130))


def test_opening_leaves_no_thread_and_reads_one_file() -> None:
    """C78: one manifest, no stat and no listing; promise 6: nothing is left running."""
    read: list[str] = []

    class Recording(OneMethod):
        async def read_range(self, path: str, offset: int, length: int) -> bytes:
            read.append(path)
            return await super().read_range(path, offset, length)

    before = threading.active_count()
    dataset = gl.open_dataset(Recording(stream_files(counted([10] * 50))), window=5)
    assert read == [MANIFEST_NAME]
    assert threading.active_count() == before
    with dataset.sync_reader() as reader:
        assert read == [MANIFEST_NAME]
        reader[0]
    assert len(read) == 1 + 2  # the checksums of one shard, and its data


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (None, MissingFileError, "there is no dataset at .*: it has no guideloom.json"),
        (b"", ManifestError, MANIFEST_NAME),
        (b"{}", ManifestError, MANIFEST_NAME),
        (b"\xff\xfe", ManifestError, MANIFEST_NAME),
        (b'{"format": "guideloom", "version": 99}', ManifestError, "99"),
    ],
)
def test_what_is_no_dataset_is_refused_by_name(
    tmp_path: Path, change: bytes | None, error: type[Exception], message: str
) -> None:
    if change is not None:
        (tmp_path / MANIFEST_NAME).write_bytes(change)
    with pytest.raises(error, match=message) as caught:
        gl.open_dataset(tmp_path, window=2)
    assert isinstance(caught.value, GuideLoomError)


def test_an_uncommitted_dataset_is_none_yet(tmp_path: Path) -> None:
    """C39: shards that were never committed are not seen."""
    storage = gl.StreamStorage.create(tmp_path, dtype="<u2")
    with storage.writer(shard=0) as shard:
        shard.append(np.arange(10))
    with pytest.raises(MissingFileError, match=r"nothing has been committed to .* yet; call commit\(\)"):
        gl.open_dataset(tmp_path, window=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": 0}, ValueError, "window must be at least 1"),
        ({"window": 2.0}, TypeError, "window must be an int, not float"),
        ({"window": True}, TypeError, "window must be an int, not bool"),
        ({"window": 2, "stride": 0}, ValueError, "stride must be at least 1"),
        ({"window": 2, "offset": -1}, ValueError, "offset must be at least 0"),
        ({"window": 2, "stride": 2**63}, ValueError, "fit in 63 bits"),
        ({"window": 2, "fields": ["token"]}, ValueError, "no field 'token'"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        in_memory(counted([10]), **options)


def test_numpy_integers_are_integers() -> None:
    """C38: and they become plain ones."""
    numbers: dict[str, Any] = {"window": np.int64(3), "stride": np.uint8(2), "offset": np.int32(1)}
    dataset = in_memory(counted([10]), **numbers)
    assert len(dataset) == 4
    assert [type(number) for number in (dataset.window, dataset.stride, dataset.offset)] == [int] * 3


def test_a_reader_stays_on_its_snapshot_and_older_ones_can_be_opened(tmp_path: Path) -> None:
    """C44 and the design: appending makes a new snapshot; open readers and checkpoints stay where they are."""
    storage = written(tmp_path, [100])
    dataset = gl.open_dataset(tmp_path, window=10)
    with dataset.sync_reader() as reader:
        with storage.writer(shard=1) as shard:
            shard.append(np.arange(100, 200))
        storage.commit()
        assert len(reader) == 10
        assert reader[9]["tokens"].tolist() == list(range(90, 100))
        with pytest.raises(IndexError):
            reader[10]
    assert len(gl.open_dataset(tmp_path, window=10)) == 20
    old = gl.open_dataset(tmp_path, window=10, snapshot=1)
    assert (len(old), old.fingerprint) == (10, dataset.fingerprint)
    assert old.fingerprint != gl.open_dataset(tmp_path, window=10).fingerprint
    with pytest.raises(MissingFileError, match="there is no snapshot 7"):
        gl.open_dataset(tmp_path, window=10, snapshot=7)
    copy = pickle.loads(pickle.dumps(dataset))
    assert (len(copy), copy.manifest.snapshot) == (10, 1)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_shard_rewritten_under_an_open_reader_is_never_mixed(tmp_path: Path, in_place: bool) -> None:
    """C44: the old content, or an error; never zeros, never old and new together."""
    root = store(stream_files([np.ones(40_000, "<u2")]), tmp_path)
    path = root / "shards" / "00000-0.bin"
    with gl.open_dataset(root, window=100).sync_reader() as reader:
        assert (reader[0]["tokens"] == 1).all()
        if in_place:
            path.write_bytes(np.full(20_000, 2, "<u2").tobytes())
        else:
            other = root / "other"
            other.write_bytes(np.full(20_000, 2, "<u2").tobytes())
            other.rename(path)
        for sample in (0, 199, 399):
            if in_place:
                with pytest.raises((GuideLoomError, OSError), match=r"shards/00000-0\.bin"):
                    reader[sample]
            else:
                assert (reader[sample]["tokens"] == 1).all()


def test_a_dataset_pickles_before_and_after_use(tmp_path: Path) -> None:
    """C49, P5: location and options, at most 4 KiB, no open file or loop."""
    written(tmp_path, [50, 50])
    dataset = gl.open_dataset(tmp_path, window=4, stride=3, offset=2, fields={"tokens": np.int64}, verify=False)
    payloads = [pickle.dumps(dataset)]
    with dataset.sync_reader() as reader:
        expected = reader[3]["tokens"].tolist()
        payloads.append(pickle.dumps(dataset))
        loader = iter(gl.Loader(dataset, 2))
        next(loader)
        payloads.append(pickle.dumps(dataset))
        with pytest.raises(TypeError, match=r"pickle the loader, or its dataset and state_dict\(\)"):
            pickle.dumps(loader)
    for payload in payloads:
        assert len(payload) <= 4096
        copy = pickle.loads(payload)
        assert isinstance(copy, StreamDataset)
        assert len(copy) == len(dataset)
        assert copy.fingerprint == dataset.fingerprint
        assert (copy.window, copy.stride, copy.offset, copy.verify) == (4, 3, 2, False)
        with copy.sync_reader() as reader:
            assert reader[3]["tokens"].dtype == np.int64
            assert reader[3]["tokens"].tolist() == expected


def test_a_dataset_pickles_to_another_process(tmp_path: Path) -> None:
    """C49: spawn and forkserver."""
    written(tmp_path, [50, 50])
    payload = pickle.dumps(gl.open_dataset(tmp_path, window=4))
    script = (
        "import pickle, sys; r = pickle.load(sys.stdin.buffer).sync_reader(); r.open(); print(r[3]['tokens'].tolist())"
    )
    result = subprocess.run([sys.executable, "-c", script], input=payload, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, b"[12, 13, 14, 15]", b"")


def test_ten_thousand_shards_pickle_to_a_few_bytes(tmp_path: Path) -> None:
    """C49, P5: the payload does not grow with the dataset."""
    (tmp_path / MANIFEST_NAME).write_bytes(encode_manifest(manifest_of(10_000, 1000)))
    dataset = gl.open_dataset(tmp_path, window=100)
    payload = pickle.dumps(dataset)
    assert len(payload) <= 4096
    copy = pickle.loads(payload)
    assert len(copy) == len(dataset) == 100_000


def test_unpickling_another_dataset_under_the_same_name_is_an_error(tmp_path: Path) -> None:
    written(tmp_path / "data", [50])
    payload = pickle.dumps(gl.open_dataset(tmp_path / "data", window=4))
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(MissingFileError):
        pickle.loads(payload)
    written(tmp_path / "data", [51])
    with pytest.raises(ManifestError, match="it is another dataset"):
        pickle.loads(payload)


def test_a_copy_without_its_history_pickles_too(tmp_path: Path) -> None:
    dataset = gl.open_dataset(store(stream_files(counted([50])), tmp_path), window=4)
    assert pickle.loads(pickle.dumps(dataset)).fingerprint == dataset.fingerprint


def test_sizes_beyond_32_bits_add_up() -> None:
    """C27: 40 shards of 1.2 billion tokens of four bytes; shard 39 begins at token 46,800,000,000."""
    manifest = manifest_of(40, 1_200_000_000)
    dataset = StreamDataset(gl.MemoryBackend({}), manifest, "nowhere", window=2048, stride=2048)
    assert dataset.grid.starts[39] == 46_800_000_000
    assert dataset.num_elements == 48_000_000_000
    assert len(dataset) == 48_000_000_000 // 2048
    assert manifest.num_bytes == 192_000_000_000


@pytest.mark.parametrize("window", [1, 2**62])
def test_the_longest_stream_that_can_be_has_the_right_number_of_windows(window: int) -> None:
    starts = np.array([0, 2**63 - 1], np.int64)
    assert WindowGrid(window, window, 0, starts).__len__() == (2**63 - 1) // window


def test_one_may_open_what_one_cannot_read() -> None:
    """A missing shard is no hindrance to opening; it is named when it is met."""
    files = stream_files(counted([10, 10]))
    del files["shards/00001-0.bin"]
    with gl.open_dataset(gl.MemoryBackend(files), window=5).sync_reader() as reader:
        assert len(reader) == 4
        with pytest.raises(BackendError, match="00001"):
            reader[3]


def test_datasets_are_values(tmp_path: Path) -> None:
    dataset = in_memory(counted([10]), window=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.window = 3  # type: ignore[misc]  # that is the point
