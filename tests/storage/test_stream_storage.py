import json
import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guideloom.errors import (
    CommitConflict,
    GuideLoomError,
    ManifestError,
    MissingFileError,
    ReadError,
    ShardError,
    WriteError,
)
from guideloom.formats.schema import Schema
from guideloom.storage import dataset, durable, group_file
from guideloom.storage.manifest import encode_manifest
from guideloom.storage.stream import StreamStorage
from guideloom.storage.stream_manifest import StreamManifest
from tests.storage.stream_files import files, intercepted, logged, read_manifest, read_rows, read_shards

FORK = multiprocessing.get_context("fork")
PAIR = np.dtype([("tokens", "<u2"), ("loss_mask", "u1")])


def make(root: Path, *shards: Any, commit: bool = True) -> StreamStorage:
    storage = StreamStorage.create(root, dtype="<u2")
    for number, tokens in enumerate(shards):
        write(storage, number, tokens)
    if commit:
        storage.commit()
    return storage


def write(storage: StreamStorage, number: int, tokens: Any) -> None:
    with storage.writer(shard=number) as shard:
        shard.append(tokens)


def tokens(root: Path) -> list[list[int]]:
    return [shard["tokens"].tolist() for shard in read_shards(root)]


def test_the_way_of_the_quick_start(tmp_path: Path) -> None:
    root = tmp_path / "data" / "corpus"
    storage = StreamStorage.create(root, dtype=PAIR, metadata={"tokenizer": "gpt2"})
    with storage.writer(shard=0) as shard:
        shard.append({"tokens": [1, 2, 3], "loss_mask": np.array([True, False, True])})
        shard.append(np.array([(4, 0)], PAIR))
    assert storage.snapshot == 0
    assert storage.commit() == 1
    assert storage.snapshot == 1
    rows = read_rows(root)
    assert rows.dtype == PAIR
    assert rows.tolist() == [(1, 1), (2, 0), (3, 1), (4, 0)]
    assert read_manifest(root).metadata == {"tokenizer": "gpt2"}
    assert repr(storage) == (
        f"<StreamStorage {str(root)!r}: tokens uint16, loss_mask uint8; 1 shards, 4 rows, 12 bytes, snapshot 1>"
    )


def test_a_dataset_that_nothing_was_committed_to_is_not_one_for_readers(tmp_path: Path) -> None:
    make(tmp_path, [1], commit=False)
    assert not (tmp_path / "guideloom.json").exists()
    other = StreamStorage.open(tmp_path)
    assert (other.schema, other.snapshot, other.missing(range(2))) == (Schema.of("<u2"), 0, [1])
    assert not (tmp_path / "guideloom.json").exists()


def test_create_refuses_a_dataset_that_is_there(tmp_path: Path) -> None:
    root = tmp_path / "corpus"
    make(root, commit=False)
    before = files(root)
    with pytest.raises(FileExistsError, match=r"StreamStorage\.open\('.*corpus'\)"):
        StreamStorage.create(root, dtype="<i4")
    assert files(root) == before
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    StreamStorage.open(root).commit()
    shutil.copy(root / "guideloom.json", mirror)
    with pytest.raises(FileExistsError):
        StreamStorage.create(mirror, dtype="<u2")


def test_create_in_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    make(tmp_path, [1])
    assert tokens(tmp_path) == [[1]]
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dtype": "O"}, TypeError),
        ({"dtype": "<u2", "metadata": {"a": (1,)}}, TypeError),
        ({"dtype": "S0"}, ValueError),
    ],
)
def test_create_makes_nothing_when_it_refuses(tmp_path: Path, arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        StreamStorage.create(tmp_path / "corpus", **arguments)
    assert not (tmp_path / "corpus").exists()


def test_open_needs_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"holds no dataset; StreamStorage\.create"):
        StreamStorage.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        StreamStorage.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ReadError, match="Not a directory"):
        StreamStorage.open(tmp_path / "file")
    with pytest.raises(WriteError):
        StreamStorage.create(tmp_path / "file", dtype="<u2")


def test_shards_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    storage = StreamStorage.create(tmp_path, dtype="<u2")
    for number in [2, 0, 3, 1]:
        write(storage, number, [number] * number)
    storage.commit()
    assert tokens(tmp_path) == [[], [1], [2, 2], [3, 3, 3]]


def test_a_commit_without_shards_makes_an_empty_dataset(tmp_path: Path) -> None:
    storage = make(tmp_path)
    assert storage.snapshot == 1
    assert read_rows(tmp_path).shape == (0,)
    assert storage.commit() == 1
    write(storage, 0, [])
    assert storage.commit() == 2
    assert tokens(tmp_path) == [[]]


def test_appending_makes_a_new_snapshot_and_keeps_the_old_one(tmp_path: Path) -> None:
    """Two writers add to what is there, and committing again changes nothing (casebook C41)."""
    make(tmp_path, [1] * 10, [2] * 10)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path) if name != "guideloom.json"}
    first, second = StreamStorage.open(tmp_path), StreamStorage.open(tmp_path)
    write(first, 2, [3] * 5)
    write(second, 3, [4] * 5)
    assert first.commit() == second.commit() == first.commit() == 2
    assert tokens(tmp_path) == [[1] * 10, [2] * 10, [3] * 5, [4] * 5]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert sorted(os.listdir(tmp_path / "snapshots")) == ["0", "1", "2"]


def test_numbers_must_not_have_gaps(tmp_path: Path) -> None:
    storage = StreamStorage.create(tmp_path, dtype="<u2")
    for number in (1, 4):
        write(storage, number, [number])
    with pytest.raises(ShardError, match="shards are missing: 0, 2, 3;") as caught:
        storage.commit()
    assert caught.value.shards == [0, 2, 3]
    assert storage.snapshot == 0
    assert not (tmp_path / "guideloom.json").exists()
    write(storage, 99_999_999, [])
    with pytest.raises(ShardError, match="20, 21 and 99999977 more"):
        storage.commit()


def test_a_plan_tells_of_a_last_shard_that_failed(tmp_path: Path) -> None:
    """One of three writers raises in the middle (casebook C40)."""
    storage = make(tmp_path, [0], [1], commit=False)
    with pytest.raises(ZeroDivisionError), storage.writer(shard=2) as shard:
        shard.append([1 // 0])
    with pytest.raises(ShardError, match="shards are missing: 2;"):
        storage.commit(shards=range(3))
    assert not (tmp_path / "guideloom.json").exists()
    write(storage, 2, [2])
    assert storage.commit(shards=range(3)) == 1
    assert tokens(tmp_path) == [[0], [1], [2]]


@pytest.mark.parametrize("number", [np.int64(7), np.uint8(7), 7])
def test_shard_numbers_may_be_of_any_integer_type(tmp_path: Path, number: Any) -> None:
    storage = StreamStorage.create(tmp_path, dtype="<u2")
    storage.writer(shard=number).close()
    assert storage.missing([7, np.int32(8)]) == [8]
    assert storage.missing([7]) == []
    assert type(storage.missing([np.int64(6)])[0]) is int


@pytest.mark.parametrize("number", [-1, True, np.True_, 1.0, "1", None, 100_000_000, np.int64(-3)])
def test_other_shard_numbers_are_refused(tmp_path: Path, number: Any) -> None:
    storage = StreamStorage.create(tmp_path, dtype="<u2")
    with pytest.raises((ValueError, TypeError)):
        storage.writer(shard=number)
    with pytest.raises((ValueError, TypeError)):
        storage.missing([number])
    assert os.listdir(tmp_path / "shards") == []


def test_a_committed_shard_cannot_be_written_again(tmp_path: Path) -> None:
    stale = make(tmp_path, [1], commit=False)
    StreamStorage.open(tmp_path).commit()
    with pytest.raises(ShardError, match="shard 0 is committed in snapshot 1"):
        stale.writer(shard=0)


def test_equal_duplicates_count_once(tmp_path: Path) -> None:
    storage = make(tmp_path, [1, 2], [3], commit=False)
    write(storage, 1, np.array([3], ">i8"))
    assert storage.commit() == 1
    assert tokens(tmp_path) == [[1, 2], [3]]
    assert storage.commit() == 1


@pytest.mark.parametrize("committed", [False, True])
def test_duplicates_that_differ_are_refused(tmp_path: Path, committed: bool) -> None:
    """Two ranks with one id write the same shard."""
    storage = make(tmp_path, [1], [2], commit=False)
    late = storage.writer(shard=1)
    late.append([9])
    if committed:
        storage.commit()
    late.close()
    with pytest.raises(
        ShardError, match=r"shard 1 .* different content: shards/00000001-.* and shards/00000001-"
    ) as caught:
        storage.commit()
    assert caught.value.shards == [1]
    named = {name for name in files(tmp_path) if name.endswith(".bin") and name in str(caught.value)}
    assert len(named) == 2
    (tmp_path / "shards" / f"{late_stem(tmp_path, [9])}.json").unlink()
    assert storage.commit() == 1
    assert tokens(tmp_path) == [[1], [2]]


def late_stem(root: Path, content: list[int]) -> str:
    raw = np.array(content, "<u2").tobytes()
    return next(path.stem for path in (root / "shards").glob("*.bin") if path.read_bytes() == raw)


def change_shard(root: Path, *keys: Any, value: Any) -> None:
    path = next((root / "shards").glob("00000000-*.json"))
    document = place = json.loads(path.read_bytes())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("shard", "number"), 1, "does not describe the shard it is named for"),
        (("shard", "rows"), 1, "does not describe"),
        (("shard", "rows"), 2**62, "does not describe"),
        (("shard", "files"), [], "does not describe"),
        (("shard", "files", 0, "file"), "../../../etc/passwd", "does not describe"),
        (("shard", "files", 0, "file"), "guideloom.json", "does not describe"),
        (("shard", "files", 0, "checksums"), "/etc/passwd", "does not describe"),
        (("shard", "files", 0, "checksum_seed"), 7, "does not describe"),
        (("shard", "files", 0, "byte_offset"), 1, "does not describe"),
        (("shard", "files", 0, "bytes"), 3, "does not describe"),
        (("shard", "files", 0, "sha256"), "Z" * 64, "SHA-256"),
        (("shard", "rows"), -1, "rows"),
        (("format",), "guideloom", "no manifest of GuideLoom"),
        (("version",), 1, "upgrade"),
        (("requires",), ["zstd"], "upgrade"),
        (("surprise",), 1, "surprise"),
        (("schema", "fields", 0, "dtype"), "<i2", "has rows of .*<i2.* but the dataset has .*<u2"),
        (("schema", "fields", 0, "dtype"), "|O", "has rows of"),
    ],
)
def test_a_planted_shard_manifest_is_refused(tmp_path: Path, keys: Any, value: Any, message: str) -> None:
    storage = make(tmp_path, [1, 2], commit=False)
    change_shard(tmp_path, *keys, value=value)
    with pytest.raises((ManifestError, ShardError), match=message):
        storage.commit()
    assert not (tmp_path / "guideloom.json").exists()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "long"])
def test_a_shard_manifest_that_is_no_small_file_is_refused(tmp_path: Path, kind: str) -> None:
    storage = make(tmp_path, [1], commit=False)
    path = tmp_path / "shards" / f"00000001-{'0' * 32}.json"
    match kind:
        case "link":
            path.symlink_to(next((tmp_path / "shards").glob("*.json")))
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.write_bytes(b" " * (2**20 + 1))
    with pytest.raises(ManifestError, match=path.name):
        storage.commit()


@pytest.mark.parametrize("suffix", [".bin", ".crc32c"])
@pytest.mark.parametrize("damage", ["missing", "cut", "extended", "link"])
def test_a_damaged_shard_is_not_committed(tmp_path: Path, suffix: str, damage: str) -> None:
    storage = make(tmp_path, range(5000), commit=False)
    path = next((tmp_path / "shards").glob("*" + suffix))
    if damage == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif damage == "extended":
        os.truncate(path, path.stat().st_size + 1)
    else:
        moved = path.rename(tmp_path / "moved")
        if damage == "link":
            path.symlink_to(moved)
    with pytest.raises(ShardError, match=f"shard 0 is damaged: .*{suffix} (is missing|has|is no regular file)"):
        storage.commit()
    assert not (tmp_path / "guideloom.json").exists()


def test_other_files_among_the_shards_do_not_matter(tmp_path: Path) -> None:
    storage = make(tmp_path, [1], commit=False)
    for name in [
        "notes.json",
        "00000001-xyz.json",
        ".00000001-" + "0" * 32 + ".json.tmp",
        "00000005-" + "0" * 32 + ".bin",
    ]:
        (tmp_path / "shards" / name).write_text("{")
    (tmp_path / "snapshots" / "notes").mkdir()
    (tmp_path / "snapshots" / "007").mkdir()
    (tmp_path / "snapshots" / ("9" * 30)).mkdir()
    assert storage.missing(range(2)) == [1]
    assert storage.commit() == 1


@pytest.mark.parametrize("finish", [StreamStorage.open, lambda path: StreamStorage.open(path).commit()])
@pytest.mark.parametrize("first", [True, False])
def test_an_interrupted_commit_is_finished_later(tmp_path: Path, finish: Callable[[Path], object], first: bool) -> None:
    storage = make(tmp_path, [1])
    old = (tmp_path / "guideloom.json").read_bytes()
    write(storage, 1, [2])
    storage.commit()
    if first:
        (tmp_path / "guideloom.json").unlink()
    else:
        (tmp_path / "guideloom.json").write_bytes(old)
    finish(tmp_path)
    assert read_manifest(tmp_path).snapshot == 2
    assert tokens(tmp_path) == [[1], [2]]


def test_a_copy_without_its_history_can_be_continued(tmp_path: Path) -> None:
    storage = make(tmp_path, [1])
    write(storage, 1, [2])
    storage.commit()
    for gone in ("snapshots", "shards/empty"):
        shutil.rmtree(tmp_path / gone, ignore_errors=True)
    copy = StreamStorage.open(tmp_path)
    assert copy.snapshot == 2
    write(copy, 2, [3])
    assert copy.commit() == 3
    assert tokens(tmp_path) == [[1], [2], [3]]


def test_two_datasets_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    make(tmp_path / "a", [1])
    make(tmp_path / "b", [2])
    shutil.copy(tmp_path / "b" / "guideloom.json", tmp_path / "a")
    with pytest.raises(ManifestError, match="different datasets"):
        StreamStorage.open(tmp_path / "a")


def test_a_later_format_is_not_overwritten(tmp_path: Path) -> None:
    storage = make(tmp_path, [1])
    write(storage, 1, [2])
    path = tmp_path / "guideloom.json"
    path.write_bytes(path.read_bytes().replace(b'"version":0', b'"version":3'))
    with pytest.raises(ManifestError, match="version is 3"):
        storage.commit()
    assert b'"version":3' in path.read_bytes()


def test_the_last_to_replace_the_manifest_leaves_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = make(tmp_path, [1], commit=False)
    original, overtaken = durable.write_file, []

    def slow(path: Path, data: bytes, *, replace: bool) -> None:
        monkeypatch.setattr(dataset, "write_file", original)
        other = StreamStorage.open(tmp_path)
        write(other, 1, [2])
        overtaken.append(other.commit())
        original(path, data, replace=replace)

    monkeypatch.setattr(dataset, "write_file", slow)
    assert storage.commit() == 1
    assert overtaken == [2]
    assert read_manifest(tmp_path).snapshot == 2


def test_the_loser_of_a_commit_may_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = make(tmp_path, [1], commit=False)
    original = durable.NewFolder.publish

    def slow(folder: durable.NewFolder) -> bool:
        monkeypatch.setattr(durable.NewFolder, "publish", original)
        StreamStorage.open(tmp_path).commit()
        write(storage, 1, [2])
        return original(folder)

    monkeypatch.setattr(durable.NewFolder, "publish", slow)
    with pytest.raises(CommitConflict, match=r"snapshot 1 of .* first; commit again") as caught:
        storage.commit()
    assert caught.value.snapshot == 1
    assert sorted(os.listdir(tmp_path / "snapshots")) == ["0", "1"]
    assert storage.commit() == 2
    assert tokens(tmp_path) == [[1], [2]]


def race(work: Callable[[Barrier], object], racers: int) -> list[int]:
    """Run `work` in processes that start together; their exit statuses, of which 3 is a lost race."""
    barrier = FORK.Barrier(racers)

    def run() -> None:
        try:
            work(barrier)
        except (CommitConflict, FileExistsError):
            os._exit(3)

    processes = [FORK.Process(target=run) for _ in range(racers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode or 0 for process in processes]


def test_of_racing_committers_one_wins(tmp_path: Path) -> None:
    storage = make(tmp_path, [0])
    original = durable.NewFolder.publish

    def commit(barrier: Barrier) -> None:
        def together(folder: durable.NewFolder) -> bool:
            barrier.wait(60)
            return original(folder)

        with mock.patch.object(durable.NewFolder, "publish", together):
            StreamStorage.open(tmp_path).commit()

    for number in range(1, 6):
        write(storage, number, [number])
        assert sorted(race(commit, 8)) == [0] + [3] * 7
        assert read_manifest(tmp_path).snapshot == number + 1
    assert tokens(tmp_path) == [[number] for number in range(6)]
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]


def test_of_racing_creators_one_wins(tmp_path: Path) -> None:
    def create(barrier: Barrier, root: Path) -> None:
        barrier.wait(60)
        StreamStorage.create(root, dtype="<u2")

    for number in range(5):
        root = tmp_path / str(number)
        assert sorted(race(lambda barrier, root=root: create(barrier, root), 4)) == [0] + [3] * 3  # type: ignore[misc]
        assert StreamStorage.open(root).snapshot == 0


def test_racing_writers_of_one_shard_do_not_disturb_each_other(tmp_path: Path) -> None:
    storage = StreamStorage.create(tmp_path, dtype="<u2")

    def claim(barrier: Barrier) -> None:
        barrier.wait(60)
        write(storage, 0, range(1000))

    assert race(claim, 4) == [0] * 4
    storage.commit()
    assert tokens(tmp_path) == [list(range(1000))]


def job(root: Path) -> None:
    """A job that can be killed anywhere and run again: three shards and a commit, then one more of each."""
    try:
        storage = StreamStorage.create(root, dtype="<u2")
    except FileExistsError:
        storage = StreamStorage.open(root)
    for stop in (3, 4):
        for number in storage.missing(range(stop)):
            write(storage, number, range(number * 1000, number * 1000 + 100))
        storage.commit(shards=range(stop))


EXPECTED = [list(range(number * 1000, number * 1000 + 100)) for number in range(4)]


def calls_of(work: Callable[[], object]) -> int:
    with logged() as log:
        work()
    return len(log)


@pytest.mark.parametrize("done", [False, True], ids=["before the call", "after it"])
def test_a_job_killed_at_any_call_leaves_a_whole_dataset_and_can_be_run_again(
    tmp_path: Path, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises W1, W3 and W4, and casebook C39; power cuts need more than a kill."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # which a kill does not miss
    num_calls = calls_of(lambda: job(tmp_path / "reference"))
    assert num_calls >= 90
    expected = read_manifest(tmp_path / "reference").fingerprint
    seen = set()
    for bad in range(1, num_calls + 1):
        root = tmp_path / f"{bad}"

        def act(count: int, _name: str, call: Callable[[], Any], bad: int = bad) -> Any:
            if count == bad and not done:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call()
            if count == bad:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        child = os.fork()
        if child == 0:
            try:
                with intercepted(act):
                    job(root)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if (root / "guideloom.json").exists():
            found = tokens(root)
            assert found in (EXPECTED[:3], EXPECTED)
            seen.add(len(found))
        job(root)
        assert tokens(root) == EXPECTED
        assert read_manifest(root).fingerprint == expected
        assert sum(name.endswith(".json") for name in files(root / "shards")) == 4
        assert sum(name.endswith(".bin") for name in files(root / "shards")) <= 6  # at most one shard is redone
        shutil.rmtree(root)
    assert seen == {3, 4}


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["ENOSPC", "Ctrl-C"]
)
def test_a_failed_commit_leaves_the_old_dataset_or_the_new_one(
    tmp_path: Path, forever: bool, error: BaseException
) -> None:
    def prepare(root: Path) -> StreamStorage:
        storage = make(root, [1])
        write(storage, 1, [2])
        return storage

    num_calls = calls_of(prepare(tmp_path / "reference").commit)
    assert num_calls >= 15
    for bad in range(1, num_calls + 1):
        root = tmp_path / f"{bad}"
        storage = prepare(root)

        def act(count: int, name: str, call: Callable[[], Any], bad: int = bad) -> Any:
            if name != "unlink" and (count == bad or (forever and count > bad)):
                if name == "close":
                    call()
                raise error
            return call()

        with pytest.raises((WriteError, KeyboardInterrupt)), intercepted(act):
            storage.commit()
        assert json.loads((root / "guideloom.json").read_bytes())["snapshot"] in (1, 2)
        assert tokens(root) in ([[1]], [[1], [2]])
        assert StreamStorage.open(root).commit() == 2
        assert tokens(root) == [[1], [2]]


def test_everything_is_synced_before_the_dataset_names_it(tmp_path: Path) -> None:
    storage = make(tmp_path, [1], commit=False)
    with logged() as log:
        storage.commit()
    file = ["open", "write", "fsync", "close", "rename"]
    folder = ["open", "fsync", "close"]
    assert log == ["mkdir", *file, *folder, "rename", *folder, *file, *folder]


def test_a_commit_keeps_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        make(tmp_path / "corpus", [1])
    finally:
        os.umask(mask)
    for path in (tmp_path / "corpus").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640)


def test_column_groups_have_a_file_each(tmp_path: Path) -> None:
    """Groups come from adopted files and from fields that are added later; writers fill each."""
    schema = Schema.of(np.dtype([("tokens", "<u2"), ("mask", "u1"), ("weight", "<f4")]))
    groups = (schema.part(["tokens", "mask"], base=0, row_bytes=3), schema.part(["weight"], base=3, row_bytes=4))
    root = tmp_path
    (root / "guideloom.json").write_bytes(encode_manifest(StreamManifest(schema, groups, (), 1)))
    storage = StreamStorage.open(root)
    for number in range(2):
        with storage.writer(shard=number) as shard:
            shard.append({"weight": [0.5, 1.5], "mask": [1, 0], "tokens": [number, 7]})
    assert storage.commit() == 2
    assert read_rows(root).tolist() == [(0, 1, 0.5), (7, 0, 1.5), (1, 1, 0.5), (7, 0, 1.5)]
    names = {entry.file for shard in storage.manifest.shards for entry in shard.files}
    assert len(names) == 4
    assert len({entry.checksum_seed for shard in storage.manifest.shards for entry in shard.files}) == 4


def test_a_storage_can_be_pickled(tmp_path: Path) -> None:
    storage = pickle.loads(pickle.dumps(make(tmp_path, [1])))
    write(storage, 1, [2])
    assert storage.commit() == 2


def test_paths_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = StreamStorage.create("größe/c# 1", dtype="<u2")
    monkeypatch.chdir("/")
    write(storage, 0, [1])
    storage.commit()
    assert tokens(tmp_path / "größe" / "c# 1") == [[1]]


STORED = ["?", "i1", "<i2", ">i4", "<i8", "u1", ">u2", "<u4", "<u8", "<f2", ">f4", "<f8", "<c8"]
columns = st.tuples(st.sampled_from(STORED), st.lists(st.integers(1, 3), max_size=2).map(tuple))


@st.composite
def tables(draw: st.DrawFn) -> list[np.ndarray[Any, Any]]:
    """Shards of rows of one random dtype, in any byte order and alignment."""
    dtype = np.dtype(
        [(f"f{i}", *column) for i, column in enumerate(draw(st.lists(columns, min_size=1, max_size=4)))],
        align=draw(st.booleans()),
    )
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shards = []
    for length in lengths:
        rows = np.zeros(length, dtype)
        for name in rows.dtype.names or ():
            rows[name] = random.integers(0, 2, rows[name].shape) * random.integers(1, 100)
        shards.append(rows)
    return shards


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(), st.data())
def test_what_is_written_is_there_whoever_wrote_it(
    tmp_path: Path, shards: list[np.ndarray[Any, Any]], data: st.DataObject
) -> None:
    """Content is that of the oracle; the fingerprint does not depend on order, appends, buffers or byte order."""
    fingerprints = set()
    for attempt in ("once", "again"):
        root = tmp_path / attempt
        shutil.rmtree(root, ignore_errors=True)  # of the example before
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _descriptor: None)
            patch.setattr(group_file, "_BUFFER_BYTES", data.draw(st.integers(1, 4096)))
            storage = StreamStorage.create(root, dtype=shards[0].dtype)
            written: set[int] = set()
            for number in data.draw(st.permutations(range(len(shards)))):
                cuts = sorted(data.draw(st.lists(st.integers(0, len(shards[number])), max_size=3)))
                with storage.writer(shard=number) as writer:
                    for part in np.split(shards[number], cuts):
                        whole = data.draw(st.booleans())
                        writer.append(part if whole else {name: part[name] for name in part.dtype.names or ()})
                written.add(number)
                if data.draw(st.booleans()) and written == set(range(len(written))):
                    storage.commit()
            storage.commit()
        for found, expected in zip(read_shards(root), shards, strict=True):
            assert found.dtype == shards[0].dtype.newbyteorder("<")
            np.testing.assert_array_equal(found, expected.astype(found.dtype))
        fingerprints.add(read_manifest(root).fingerprint)
    assert len(fingerprints) == 1


def test_errors_are_ours(tmp_path: Path) -> None:
    storage = make(tmp_path, [1])
    (tmp_path / "guideloom.json").unlink()
    (tmp_path / "guideloom.json").mkdir()
    write(storage, 1, [2])
    with pytest.raises(GuideLoomError):
        storage.commit()


def test_a_manifest_that_another_commit_is_replacing_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems show a file that was just replaced at its old length, for some milliseconds."""
    storage = StreamStorage.create(tmp_path, dtype="<u2")
    with storage.writer(shard=0) as shard:
        shard.append([1, 2])
    storage.commit()
    read_file = durable.read_file
    cut = [True]

    def read_cut(path: Path, *, max_bytes: int) -> bytes:
        data = read_file(path, max_bytes=max_bytes)
        return data[:-100] if path == tmp_path / "guideloom.json" and cut.pop() else data

    monkeypatch.setattr("guideloom.storage.dataset.read_file", read_cut)
    cut[:] = [False, True]
    assert StreamStorage.open(tmp_path).snapshot == 1
    assert cut == []
    (tmp_path / "guideloom.json").write_bytes(b"{")
    cut[:] = [False, False]
    with pytest.raises(ManifestError):
        StreamStorage.open(tmp_path)
