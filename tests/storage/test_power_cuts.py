"""Promises W2 and W3 on a model of a disk that keeps what was synced, and of the rest whatever it likes."""

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from guideloom.storage import durable
from guideloom.storage.stream import StreamStorage
from tests.storage.stream_files import read_manifest, read_shards

Tree = dict[str, bytes | None]  # path to content, None for a folder

EXPECTED = [list(range(number * 10, number * 10 + 10)) for number in range(3)]


class File:
    """A file: what was written to it, and what of that a power cut leaves for sure."""

    def __init__(self) -> None:
        self.data = b""
        self.synced = b""

    def after_cut(self, chance: random.Random) -> bytes:
        unsynced = len(self.data) - len(self.synced)
        kept = len(self.synced) + chance.choice([0, unsynced // 2, unsynced])
        return self.data[:kept] + bytes(chance.choice([0, len(self.data) - kept]))


class Folder:
    """A folder: its names now, its names when it was last synced, and the changes since, each kept or lost."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.synced: dict[str, File | Folder] = {}
        self.changes: list[tuple[str | None, str | None, File | Folder | None]] = []

    def change(self, old: str | None, new: str | None, node: "File | Folder | None") -> None:
        self._apply(self.names, old, new, node)
        self.changes.append((old, new, node))

    def sync(self) -> None:
        self.synced, self.changes = dict(self.names), []

    def after_cut(self, chance: random.Random, path: str, tree: Tree) -> Tree:
        names = dict(self.synced)
        for old, new, node in self.changes:
            if chance.random() < 0.5:
                self._apply(names, old, new, node)
        for name, node in names.items():
            if isinstance(node, File):
                tree[path + name] = node.after_cut(chance)
            else:
                tree[path + name] = None
                node.after_cut(chance, f"{path}{name}/", tree)
        return tree

    @staticmethod
    def _apply(
        names: "dict[str, File | Folder]", old: str | None, new: str | None, node: "File | Folder | None"
    ) -> None:
        if old is not None:
            names.pop(old, None)
        if new is not None:
            assert node is not None
            names[new] = node


class Disk:
    """Follows the system calls below a root, and cuts the power after each."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root = root
        self._chance = random.Random(seed)
        self._top = Folder()
        self._open: dict[int, File | Folder] = {}
        self.acknowledged = 0
        self.cuts: list[tuple[int, Tree]] = []

    def run(self, work: Callable[[], object]) -> None:
        with contextlib.ExitStack() as stack:
            for name in self._EFFECTS:
                stack.enter_context(mock.patch.object(os, name, self._watched(name, getattr(os, name))))
            rename_new = self._watched("rename", durable.rename_new)
            stack.enter_context(mock.patch.object(durable, "rename_new", rename_new))
            work()

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        effect = self._EFFECTS[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            result = None if name == "fsync" else original(*args, **kwargs)
            effect(self, result, *args)
            self.cuts.append((self.acknowledged, self._top.after_cut(self._chance, "", {})))
            return result

        return call

    def _find(self, path: Path) -> tuple[Folder, str]:
        folder = self._top
        for part in path.relative_to(self._root).parts[:-1]:
            inner = folder.names[part]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, path.name

    def _opened(self, descriptor: int, path: Path, flags: int, *_mode: int) -> None:
        if flags & os.O_CREAT:
            folder, name = self._find(path)
            self._open[descriptor] = File()
            folder.change(None, name, self._open[descriptor])
        elif flags & os.O_DIRECTORY:
            folder, name = self._find(path) if path != self._root else (self._top, "")
            self._open[descriptor] = folder.names[name] if name else folder

    def _wrote(self, count: int, descriptor: int, data: memoryview) -> None:
        file = self._open[descriptor]
        assert isinstance(file, File)
        file.data += bytes(data[:count])

    def _synced(self, _result: None, descriptor: int) -> None:
        node = self._open[descriptor]
        if isinstance(node, File):
            node.synced = node.data
        else:
            node.sync()

    def _closed(self, _result: None, descriptor: int) -> None:
        self._open.pop(descriptor, None)

    def _renamed(self, _result: None, old: Path, new: Path) -> None:
        folder, name = self._find(old)
        assert old.parent == new.parent
        folder.change(name, new.name, folder.names[name])

    def _made(self, _result: None, path: Path) -> None:
        folder, name = self._find(path)
        folder.change(None, name, Folder())

    def _removed(self, _result: None, path: Path) -> None:
        folder, name = self._find(path)
        folder.change(name, None, None)

    _EFFECTS: dict[str, Callable[..., None]] = {  # noqa: RUF012 - constant
        "open": _opened,
        "write": _wrote,
        "fsync": _synced,
        "close": _closed,
        "rename": _renamed,
        "mkdir": _made,
        "unlink": _removed,
    }


def job(root: Path, acknowledge: Callable[[int], None] = lambda _snapshot: None) -> None:
    try:
        storage = StreamStorage.create(root, dtype="<u2")
    except FileExistsError:
        storage = StreamStorage.open(root)
    for stop in (2, 3):
        for number in storage.missing(range(stop)):
            with storage.writer(shard=number) as shard:
                shard.append(EXPECTED[number])
        acknowledge(storage.commit(shards=range(stop)))


def restore(tree: Tree, root: Path) -> None:
    root.mkdir()
    for name, data in tree.items():
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)


def tokens(root: Path) -> list[list[int]]:
    return [shard["tokens"].tolist() for shard in read_shards(root)]


def cuts_of(root: Path, seed: int) -> list[tuple[int, Tree]]:
    disk = Disk(root, seed)

    def acknowledge(snapshot: int) -> None:
        disk.acknowledged = snapshot

    root.mkdir()
    disk.run(lambda: job(root / "corpus", acknowledge))
    return disk.cuts


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_call_leaves_a_whole_dataset(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = cuts_of(tmp_path / "disk", seed)
    expected = read_manifest(tmp_path / "disk" / "corpus").fingerprint
    assert len(cuts) >= 90
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    for number, (acknowledged, tree) in enumerate(cuts):
        root = tmp_path / str(number) / "corpus"
        restore(tree, root.parent)
        if (root / "guideloom.json").exists():
            found = tokens(root)
            assert found in (EXPECTED[:2], EXPECTED)
            assert len(found) >= acknowledged + 1
        else:
            assert acknowledged == 0
        job(root)
        assert tokens(root) == EXPECTED
        assert read_manifest(root).fingerprint == expected


@pytest.mark.parametrize("kind", ["files", "folders"])
def test_the_model_finds_a_missing_sync(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Disk._synced

    def forgetful(self: Disk, result: None, descriptor: int) -> None:
        if isinstance(self._open[descriptor], File if kind == "folders" else Folder):
            synced(self, result, descriptor)

    monkeypatch.setitem(Disk._EFFECTS, "fsync", forgetful)
    bad = 0
    for number, (acknowledged, tree) in enumerate(cuts_of(tmp_path / "disk", 0)):
        root = tmp_path / str(number) / "corpus"
        restore(tree, root.parent)
        try:
            bad += len(tokens(root)) < acknowledged + 1
        except (OSError, ValueError, AssertionError):
            bad += acknowledged > 0
    assert bad > 0
