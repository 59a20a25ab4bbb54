"""``guideloom snapshots`` and ``guideloom prune``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import guideloom as gl
from tests.cli.conftest import Run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    storage = gl.StreamStorage.create(tmp_path / "corpus", dtype="<u2")
    for number in range(3):
        with storage.writer(number) as shard:
            shard.append(range(1000))
        storage.commit()
    with storage.writer(3) as shard:
        shard.append([1])
    return tmp_path / "corpus"


def test_snapshots_as_a_table(run: Run, corpus: Path) -> None:
    shown = run("snapshots", corpus).stdout
    lines = [line for line in shown.splitlines() if "sha256:" in line]
    assert len(lines) == 4
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    assert [("current" in line) for line in lines] == [False, False, False, True]
    assert "6,000" in lines[3]
    (corpus / "snapshots/1/guideloom.json").write_bytes(b"{")
    assert "its manifest cannot be read" in run("snapshots", corpus).stdout


def test_snapshots_as_json(run: Run, corpus: Path) -> None:
    found = json.loads(run("snapshots", corpus, "--json").stdout)
    assert [each["number"] for each in found["snapshots"]] == [0, 1, 2, 3]
    assert found["snapshots"][3]["fingerprint"] == gl.StreamStorage.open(corpus).manifest.fingerprint


def test_snapshots_with_layers(run: Run, corpus: Path) -> None:
    layer = gl.StreamStorage.open(corpus).add_layer("topics", gl.formats.Text())
    for number in range(3):
        with layer.writer(number) as spans:
            spans.append([(0, 9, "a")])
    layer.commit()
    found = json.loads(run("snapshots", corpus, "--json").stdout)["snapshots"]
    assert [each["layers"] for each in found] == [[], [], [], [], ["topics"]]
    lines = [line.split() for line in run("snapshots", corpus).stdout.splitlines() if "sha256:" in line]
    assert [line[3:6] for line in lines[-2:]] == [["3", "0", "6,000"], ["3", "1", "6,000"]]


def test_prune_lists_and_removes_only_when_told(run: Run, corpus: Path) -> None:
    before = sorted(corpus.rglob("*"))
    assert "nothing to remove" in run("prune", corpus).stdout
    shown = run("prune", corpus, "--keep", 1, "--older-than", 0)
    assert shown.exit_code == 0
    assert "would remove 6 files and folders" in shown.stdout
    assert "old snapshot" in shown.stdout
    assert "uncommitted" in shown.stdout
    assert sorted(corpus.rglob("*")) == before
    assert "removed 6 files and folders" in run("prune", corpus, "--keep", 1, "--older-than", 0, "--yes").stdout
    assert os.listdir(corpus / "snapshots") == ["3"]
    assert run("verify", corpus).exit_code == 0


def test_prune_as_json(run: Run, corpus: Path) -> None:
    found = json.loads(run("prune", corpus, "--older-than", 0, "--json").stdout)
    assert found["removed"] is False
    assert {each["reason"] for each in found["remains"]} == {"uncommitted"}
    assert found["bytes"] == sum(each["num_bytes"] for each in found["remains"])


@pytest.mark.parametrize("command", ["snapshots", "prune"])
def test_no_dataset(run: Run, tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert result.exit_code == 1
    assert "there is no dataset" in result.stderr
    assert run("prune", tmp_path, "--keep", 0).exit_code == 2
