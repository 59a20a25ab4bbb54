"""Snapshots listed, and what no snapshot needs removed: never more, whenever it is cut short."""

import os
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import guideloom as gl
from guideloom.errors import ManifestError, MissingFileError, ShardError, WriteError
from guideloom.storage import dataset as dataset_module
from guideloom.storage import durable
from guideloom.storage.layer_storage import LayerStorage
from guideloom.storage.merge import merge_shards
from guideloom.storage.prune import Remains, prune
from guideloom.storage.stream import StreamStorage
from tests.storage.stream_files import files, intercepted, logged, read_shards


def write(storage: StreamStorage, number: int, tokens: Any) -> None:
    with storage.writer(shard=number) as shard:
        shard.append(tokens)


@pytest.fixture
def corpus(tmp_path: Path) -> StreamStorage:
    """Three snapshots with a shard each."""
    storage = StreamStorage.create(tmp_path / "corpus", dtype="<u2")
    for number in range(3):
        write(storage, number, [number] * 5)
        storage.commit()
    return storage


def litter(storage: StreamStorage) -> None:
    """Leave what killed writers and committers leave, and a shard that nobody committed."""
    write(storage, 3, [3] * 5)
    shards = storage.path / "shards"
    id_ = "0123456789abcdef" * 2
    (shards / f".00000007-{id_}.bin.{id_}.tmp").write_bytes(b"half")
    (shards / f"00000008-{id_}.bin").write_bytes(b"no manifest")
    (shards / f"00000008-{id_}.crc32c").write_bytes(b"")
    (storage.path / f".guideloom.json.{id_}.tmp").write_bytes(b"{")
    prepared = storage.path / "snapshots" / f".4.{id_}.tmp"
    prepared.mkdir()
    (prepared / "guideloom.json").write_bytes(b"{")


def tokens(root: Path) -> list[list[int]]:
    return [shard["tokens"].tolist() for shard in read_shards(root)]


def test_snapshots_are_listed(corpus: StreamStorage) -> None:
    found = gl.list_snapshots(corpus.path)
    assert [(each.number, each.shards, each.num_bytes) for each in found] == [(n, n, 10 * n) for n in range(4)]
    assert [each.is_current for each in found] == [False, False, False, True]
    assert found[-1].fingerprint == corpus.manifest.fingerprint
    assert len({each.fingerprint for each in found}) == 4
    times = [each.committed or 0 for each in found]
    assert times == sorted(times)
    (corpus.path / "snapshots/1/guideloom.json").write_bytes(b"{")
    assert [each.fingerprint is None for each in gl.list_snapshots(corpus.path)] == [False, True, False, False]
    shutil.rmtree(corpus.path / "snapshots")
    assert [(each.number, each.is_current) for each in gl.list_snapshots(corpus.path)] == [(3, True)]
    with pytest.raises(MissingFileError, match="no dataset"):
        gl.list_snapshots(corpus.path / "shards")


def test_nothing_to_prune(corpus: StreamStorage) -> None:
    before = files(corpus.path)
    assert prune(corpus.path, min_age_seconds=0) == []
    assert files(corpus.path) == before


def test_what_is_young_stays(corpus: StreamStorage) -> None:
    litter(corpus)
    before = files(corpus.path)
    assert prune(corpus.path) == []
    assert files(corpus.path) == before


def test_a_dry_run_removes_nothing(corpus: StreamStorage) -> None:
    litter(corpus)
    before = files(corpus.path)
    planned = prune(corpus.path, keep=1, min_age_seconds=0, dry_run=True)
    assert files(corpus.path) == before
    assert planned == prune(corpus.path, keep=1, min_age_seconds=0)
    assert files(corpus.path) < before


def test_remains_go_and_everything_else_stays(corpus: StreamStorage) -> None:
    before = files(corpus.path)
    litter(corpus)
    for name in ("mine", ".mine.tmp", "shards/notes.txt", "shards/.hidden", "snapshots/x"):
        (corpus.path / name).write_text("keep me")
        before.add(name)
    removed = prune(corpus.path, min_age_seconds=0)
    assert files(corpus.path) == before
    reasons = [each.reason for each in removed]
    assert (reasons.count("temporary"), reasons.count("uncommitted"), len(reasons)) == (3, 5, 8)
    assert sum(each.num_bytes for each in removed) > 20
    assert gl.verify(corpus.path).ok
    assert corpus.missing(range(5)) == [3, 4]


def test_old_snapshots_go(corpus: StreamStorage) -> None:
    before = tokens(corpus.path)
    removed = prune(corpus.path, keep=2)
    assert [each.path for each in removed] == ["snapshots/0", "snapshots/1"]
    assert sorted(os.listdir(corpus.path / "snapshots")) == ["2", "3"]
    assert tokens(corpus.path) == before
    assert gl.open_dataset(corpus.path, window=1, snapshot=2).num_elements == 10
    with pytest.raises(MissingFileError, match="no snapshot 1"):
        gl.open_dataset(corpus.path, window=1, snapshot=1)
    write(corpus, 3, [3])
    assert corpus.commit() == 4


def test_files_that_only_an_old_snapshot_names_go_with_it(corpus: StreamStorage) -> None:
    other = StreamStorage.create(corpus.path.with_name("other"), dtype="<u2")
    write(other, 0, [9] * 9)
    other.commit()
    for path in (other.path / "shards").iterdir():
        shutil.copy(path, corpus.path / "shards")
    shutil.copy(other.path / "guideloom.json", corpus.path / "snapshots/1/guideloom.json")
    named = {name for name in files(other.path) if name.startswith("shards/")}
    assert prune(corpus.path) == []
    removed = prune(corpus.path, keep=1)
    assert {each.path for each in removed} == {"snapshots/0", "snapshots/1", "snapshots/2"} | named
    assert gl.verify(corpus.path).ok


def test_what_cannot_be_read_is_not_guessed_at(corpus: StreamStorage) -> None:
    (corpus.path / "snapshots/2/guideloom.json").write_bytes(b"{")
    before = files(corpus.path)
    with pytest.raises(ManifestError, match="snapshots/2"):
        prune(corpus.path, min_age_seconds=0)
    assert files(corpus.path) == before
    prune(corpus.path, keep=1, min_age_seconds=0)
    assert tokens(corpus.path) == [[n] * 5 for n in range(3)]


@pytest.mark.parametrize("arguments", [{"keep": 0}, {"min_age_seconds": -1}])
def test_wrong_arguments(corpus: StreamStorage, arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"keep is 0|negative"):
        prune(corpus.path, **arguments)
    with pytest.raises(MissingFileError, match="no dataset"):
        prune(corpus.path / "shards")


def test_a_snapshot_that_guideloom_json_does_not_name_yet_is_kept(corpus: StreamStorage) -> None:
    """A commit that was killed before its last step."""
    old = (corpus.path / "guideloom.json").read_bytes()
    write(corpus, 3, [3] * 5)
    corpus.commit()
    (corpus.path / "guideloom.json").write_bytes(old)
    prune(corpus.path, keep=1, min_age_seconds=0)
    assert len(StreamStorage.open(corpus.path).manifest.shards) == 4
    assert gl.verify(corpus.path).ok


def test_a_young_shard_keeps_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data may have been written days before its manifest."""
    storage = StreamStorage.create(tmp_path, dtype="<u2")
    storage.commit()
    write(storage, 0, [1])
    age(monkeypatch, lambda path: not path.endswith(".json"))
    assert prune(tmp_path) == []


def add_layer(storage: StreamStorage, name: str, shards: Iterable[int]) -> LayerStorage:
    """Write the spans of some shards of a layer."""
    layer = storage.add_layer(name, gl.formats.Text())
    for number in shards:
        with layer.writer(number) as spans:
            spans.append([(0, 5, "all of it")])
    return layer


def of(storage: StreamStorage, suffix: str) -> set[str]:
    return {name for name in files(storage.path) if name.endswith(suffix)}


def age(monkeypatch: pytest.MonkeyPatch, is_old: Callable[[str], bool]) -> None:
    """Let files have been written in 1970."""
    original = os.lstat

    def aged(path: Any) -> Any:
        status = original(path)
        if is_old(str(path)):
            status = os.stat_result([*status[:7], 0, 0, 0, *status[10:]], {"st_mtime": 0.0, "st_ctime": 0.0})
        return status

    monkeypatch.setattr(os, "lstat", aged)


def test_committed_layers_stay_whole_and_uncommitted_ones_go(corpus: StreamStorage) -> None:
    add_layer(corpus, "kept", range(3)).commit()
    before = files(corpus.path)
    assert len(of(corpus, ".layer.json")) == 3
    assert prune(corpus.path, keep=1, min_age_seconds=0, dry_run=True) == [
        Remains(f"snapshots/{n}", os.path.getsize(corpus.path / f"snapshots/{n}/guideloom.json"), "old snapshot")
        for n in range(4)
    ]
    layer = add_layer(corpus, "dropped", range(2))
    removed = prune(corpus.path, min_age_seconds=0)
    assert files(corpus.path) == before
    assert [each.reason for each in removed] == ["uncommitted"] * 8
    assert all(each.path.endswith(".layer.json") for each in removed[:2])
    assert gl.verify(corpus.path).ok
    assert layer.missing() == [0, 1, 2]


def test_a_layer_that_only_an_old_snapshot_names_goes_with_it(corpus: StreamStorage) -> None:
    """As in a folder that was put together by hand: there is none otherwise."""
    current = (corpus.path / "guideloom.json").read_bytes()
    before = files(corpus.path)
    add_layer(corpus, "old", range(3)).commit()
    os.rename(corpus.path / "snapshots/4", corpus.path / "snapshots/1-")
    shutil.rmtree(corpus.path / "snapshots/1")
    os.rename(corpus.path / "snapshots/1-", corpus.path / "snapshots/1")
    (corpus.path / "guideloom.json").write_bytes(current)
    assert prune(corpus.path) == []
    removed = prune(corpus.path, keep=2)
    assert files(corpus.path) == before - {"snapshots/0/guideloom.json", "snapshots/1/guideloom.json"}
    assert [each.reason for each in removed] == ["old snapshot"] * (2 + 3 * 4)
    assert gl.verify(corpus.path).ok


def test_a_layer_that_is_being_added_stays_while_its_last_shard_is_young(
    corpus: StreamStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can only be committed as a whole, and its data may have been written days before."""
    layer = add_layer(corpus, "slow", range(3))
    add_layer(corpus, "given up", [0])
    (given_up,) = (name for name in of(corpus, ".layer.json") if b"given up" in (corpus.path / name).read_bytes())
    (young,) = (
        name
        for name in of(corpus, ".layer.json")
        if b"slow" in (corpus.path / name).read_bytes() and name.startswith("shards/00000002")
    )
    age(monkeypatch, lambda path: not path.endswith(young))
    removed = prune(corpus.path)
    assert {each.path.split(".")[0] for each in removed if each.path.startswith("shards/")} == {given_up.split(".")[0]}
    assert len([each for each in removed if each.path.startswith("shards/")]) == 4
    assert layer.commit() == 4
    assert gl.verify(corpus.path).ok
    age(monkeypatch, lambda path: True)
    assert [each for each in prune(corpus.path) if each.path.startswith("shards/")] == []


def test_a_layer_that_was_written_twice_leaves_no_remains(
    corpus: StreamStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = add_layer(corpus, "twice", [0, 0, 1, 2])
    layer.commit()
    age(monkeypatch, lambda path: True)
    removed = prune(corpus.path)
    assert len([each for each in removed if each.path.startswith("shards/")]) == 4
    assert gl.verify(corpus.path).ok
    assert gl.verify(corpus.path).extra_files == ()


def test_prune_does_not_take_what_a_commit_is_taking(corpus: StreamStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first: the commit has read the shard's manifest, and prune would remove it just then."""
    write(corpus, 3, [3] * 5)
    original = merge_shards

    def merged_and_then_pruned(*arguments: Any) -> Any:
        merged = original(*arguments)
        prepared = next((corpus.path / "snapshots").glob(".*"))
        os.utime(prepared)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("guideloom.storage.prune._Plan._temporary", lambda self: [])  # too young to go
            removed = prune(corpus.path, min_age_seconds=0)
        assert [Path(each.path).suffix for each in removed] == [".json"]
        return merged

    monkeypatch.setattr(dataset_module, "merge_shards", merged_and_then_pruned)
    assert corpus.commit() == 4
    monkeypatch.undo()
    assert gl.verify(corpus.path).ok
    assert tokens(corpus.path)[3] == [3] * 5


def test_a_commit_in_the_middle_of_prune_is_spared(corpus: StreamStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It published between the two looks of prune."""
    write(corpus, 3, [3] * 5)
    original = os.unlink

    def unlink(path: Any, **kwargs: Any) -> None:
        if str(path).endswith(".json"):
            monkeypatch.setattr(os, "unlink", original)
            StreamStorage.open(corpus.path).commit()
        original(path, **kwargs)

    monkeypatch.setattr(os, "unlink", unlink)
    prune(corpus.path, min_age_seconds=0)
    assert gl.list_snapshots(corpus.path)[-1].shards == 4
    assert gl.verify(corpus.path).ok


def test_a_commit_whose_folder_was_pruned_fails_and_harms_nothing(
    corpus: StreamStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(corpus, 3, [3] * 5)
    original = durable.NewFolder.publish

    def publish(folder: durable.NewFolder) -> bool:
        prune(corpus.path, min_age_seconds=0)
        return original(folder)

    monkeypatch.setattr(durable.NewFolder, "publish", publish)
    with pytest.raises(WriteError, match="No such file"):
        corpus.commit()
    monkeypatch.undo()
    assert gl.verify(corpus.path).ok
    with pytest.raises(ShardError, match="missing: 3"):
        corpus.commit(shards=range(4))


@pytest.mark.parametrize("done", [False, True], ids=["before the call", "after it"])
def test_prune_killed_at_any_call_leaves_a_whole_dataset(
    tmp_path: Path, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # which a kill does not miss

    def prepare(root: Path) -> StreamStorage:
        storage = StreamStorage.create(root, dtype="<u2")
        for number in range(3):
            write(storage, number, [number] * 5)
            storage.commit()
        litter(storage)
        return storage

    expected = prepare(tmp_path / "reference")
    with logged() as log:
        prune(expected.path, keep=1, min_age_seconds=0)
    assert len(log) >= 16
    for bad in range(1, len(log) + 1):
        storage = prepare(tmp_path / str(bad))

        def act(count: int, _name: str, call: Callable[[], Any], bad: int = bad) -> Any:
            if count == bad and not done:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call()
            finally:
                if count == bad:
                    os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if child == 0:
            try:
                with intercepted(act):
                    prune(storage.path, keep=1, min_age_seconds=0)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert gl.verify(storage.path).ok
        assert StreamStorage.open(storage.path).commit() in (3, 4)  # the shard that nobody had committed, or not
        assert tokens(storage.path)[:3] == [[n] * 5 for n in range(3)]
        prune(storage.path, keep=1, min_age_seconds=0)
        assert gl.verify(storage.path).ok
        assert len([name for name in files(storage.path) if name.startswith("shards/")]) in (9, 12)
        assert not [name for name in files(storage.path) if name.endswith(".tmp")]
        shutil.rmtree(storage.path)


def test_racing_prunes_do_not_disturb_each_other(corpus: StreamStorage) -> None:
    litter(corpus)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                prune(corpus.path, keep=1, min_age_seconds=0)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert gl.verify(corpus.path).ok
    assert gl.verify(corpus.path).extra_files == ()
