"""``guideloom verify``: verdict, exit status, places of damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import guideloom as gl
from tests.cli.conftest import Run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    storage = gl.StreamStorage.create(tmp_path / "corpus", dtype="<u2")
    for number in range(2):
        with storage.writer(number) as shard:
            shard.append(range(10_000))
    storage.commit()
    return tmp_path / "corpus"


def damaged(corpus: Path) -> str:
    entry = gl.StreamStorage.open(corpus).manifest.shards[1].files[0]
    with (corpus / entry.file).open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\xff")
    return entry.file


@pytest.mark.parametrize("option", [[], ["--full"], ["--quick"]])
def test_a_whole_dataset(run: Run, corpus: Path, option: list[str]) -> None:
    result = run("verify", corpus, *option)
    assert result.exit_code == 0
    assert f"{corpus}: whole; checked" in result.stdout
    assert gl.StreamStorage.open(corpus).manifest.fingerprint in result.stdout


def test_damage_is_listed_and_told_by_the_exit_status(run: Run, corpus: Path) -> None:
    name = damaged(corpus)
    result = run("verify", corpus)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"shard 1: {name}, 4096 bytes at offset 4096: damaged")
    assert "DAMAGED in 1 places" in result.stdout
    assert run("verify", corpus, "--quick").exit_code == 0


def test_json(run: Run, corpus: Path) -> None:
    name = damaged(corpus)
    (corpus / "shards" / "mine").write_text("")
    result = run("verify", corpus, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["mode"], found["num_damages"], found["extra_files"]) == (
        False,
        "full",
        1,
        ["shards/mine"],
    )
    assert (found["damages"][0]["path"], found["damages"][0]["offset"]) == (name, 4096)


def test_expect(run: Run, corpus: Path) -> None:
    fingerprint = gl.StreamStorage.open(corpus).manifest.fingerprint
    assert run("verify", corpus, "--expect", fingerprint).exit_code == 0
    refused = run("verify", corpus, "--expect", "sha256:" + "0" * 64)
    assert refused.exit_code == 1
    assert fingerprint in refused.stderr
    assert run("verify", corpus, "--expect", "nonsense").exit_code == 2


def test_no_dataset(run: Run, tmp_path: Path) -> None:
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert "there is no dataset" in result.stderr


def test_extra_files_are_told_without_control_characters(run: Run, corpus: Path) -> None:
    for number in range(7):
        (corpus / "shards" / f"\x1b[31m{number}").write_text("")
    result = run("verify", corpus)
    assert result.exit_code == 0
    assert "and 2 more" in result.stdout
    assert "\x1b" not in result.stdout
