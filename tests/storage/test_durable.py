"""Renames that replace nothing, where the system helps and where it does not."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from guideloom._speedups.renaming import rename_new as system_rename_new
from guideloom.errors import WriteError
from guideloom.storage import durable
from guideloom.storage.durable import NewFile, NewFolder, rename_new, write_file


@pytest.fixture(params=["kernel", "links", "neither"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the system can do."""

    def refuse(code: int) -> Any:
        def call(*_: Any, **__: Any) -> None:
            raise OSError(code, os.strerror(code))

        return call

    if request.param != "kernel":
        monkeypatch.setattr(durable, "_speedups_rename_new", refuse(errno.EINVAL))
    if request.param == "neither":
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    return str(request.param)


def test_a_file_takes_a_free_name(tmp_path: Path, means: str) -> None:
    (tmp_path / "old").write_bytes(b"data")
    rename_new(tmp_path / "old", tmp_path / "new \xe9")
    assert os.listdir(tmp_path) == ["new \xe9"]
    assert (tmp_path / "new \xe9").read_bytes() == b"data"
    with pytest.raises(FileNotFoundError):
        rename_new(tmp_path / "old", tmp_path / "other")


@pytest.mark.parametrize("means", ["kernel", "links"], indirect=True)
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder"])
def test_a_name_that_is_taken_is_left_alone(tmp_path: Path, means: str, kind: str) -> None:
    new = tmp_path / "new"
    (tmp_path / "target").write_bytes(b"precious")
    if kind == "file":
        new.write_bytes(b"precious")
    elif kind == "folder":
        new.mkdir()
    else:
        new.symlink_to("target" if kind == "link" else "nowhere")
    before = sorted(os.listdir(tmp_path))
    file = NewFile(new)
    file.write(b"mine")
    with pytest.raises(WriteError, match="File exists") as caught:
        file.publish()
    assert caught.value.errno == errno.EEXIST
    file.remove()
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "target").read_bytes() == b"precious"
    if kind != "folder":
        write_file(new, b"mine", replace=True)
        assert not new.is_symlink()
        assert new.read_bytes() == b"mine"


def test_of_two_folders_the_first_stays(tmp_path: Path, means: str) -> None:
    for number in range(2):
        with NewFolder(tmp_path / "new") as folder:
            folder.write("number", b"%d" % number)
            assert folder.publish() is (number == 0)
    assert (tmp_path / "new/number").read_bytes() == b"0"
    assert os.listdir(tmp_path) == ["new"]


def test_other_errors_are_not_taken_for_a_missing_ability(tmp_path: Path, means: str) -> None:
    (tmp_path / "old").write_bytes(b"data")
    with pytest.raises(FileNotFoundError):
        rename_new(tmp_path / "old", tmp_path / "nowhere/new")
    assert os.listdir(tmp_path) == ["old"]


def test_the_call_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"data")
    with pytest.raises(FileNotFoundError) as caught:
        system_rename_new(os.fsencode(tmp_path / "gone"), os.fsencode(tmp_path / "new"))
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "gone"), str(tmp_path / "new"))
    with pytest.raises(TypeError):
        system_rename_new(None, b"new")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="null"):
        system_rename_new(b"a\0b", b"new")
