"""``guideloom inspect``: facts and windows, for people and for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import guideloom as gl
from guideloom._typing import AnyArray
from tests.cli.conftest import PROSE, Run


@pytest.fixture
def dataset(run: Run, prose: Path, tmp_path: Path, tokenizer_file: Path) -> Path:
    out = tmp_path / "corpus"
    assert run("build", prose, "--out", out, "--tokenizer", tokenizer_file, "--shards", 2).exit_code == 0
    return out


def write(
    path: Path, rows: AnyArray, dtype: npt.DTypeLike = np.uint16, metadata: dict[str, object] | None = None
) -> Path:
    storage = gl.StreamStorage.create(path, dtype=dtype, metadata=metadata)
    with storage.writer(0) as shard:
        shard.append(rows)
    storage.commit()
    return path


def test_facts_as_json(run: Run, dataset: Path) -> None:
    found = json.loads(run("inspect", dataset, "--json", "--samples", 0).stdout)
    manifest = gl.StreamStorage.open(dataset).manifest
    rows = [shard.rows for shard in manifest.shards]
    assert found == {
        "dataset": str(dataset),
        "kind": "stream",
        "snapshot": 1,
        "schema": [{"name": "tokens", "dtype": "uint16", "shape": []}],
        "row_bytes": 2,
        "shards": 2,
        "smallest_shard": min(rows),
        "largest_shard": max(rows),
        "elements": sum(rows),
        "bytes": 2 * sum(rows),
        "fingerprint": manifest.fingerprint,
        "checksums": {"algorithm": "crc32c", "block_bytes": 4096},
        "layers": [],
        "metadata": manifest.metadata,
        "window": 64,
        "windows": [],
    }


def test_windows_are_decoded_by_the_tokenizer_of_the_dataset(run: Run, dataset: Path) -> None:
    windows = json.loads(run("inspect", dataset, "--json", "--samples", 3, "--window", 5).stdout)["windows"]
    opened = gl.open_dataset(dataset, window=5)
    assert [window["index"] for window in windows] == [k * len(opened) // 3 for k in range(3)]
    with opened.sync_reader() as reader:
        for window in windows:
            assert window["fields"] == {"tokens": reader[window["index"]]["tokens"].tolist()}
    whole = json.loads(run("inspect", dataset, "--json", "--samples", 1, "--window", opened.num_elements).stdout)
    assert whole["windows"][0]["text"] == "".join(f"{text}<|endoftext|>" for text in PROSE)


def test_the_table(run: Run, dataset: Path) -> None:
    shown = run("inspect", dataset, "--window", 5).stdout
    opened = gl.open_dataset(dataset, window=5)
    for text in ("stream, snapshot 1", "tokens uint16", f"{opened.num_elements:,}", opened.fingerprint, "CRC32C"):
        assert text in shown
    assert f"3 of {len(opened)} windows of 5 elements" in shown
    assert "metadata: num_documents" in shown
    assert "'Call me" in shown


def test_layers_are_named(run: Run, tmp_path: Path) -> None:
    layers = {"topic": gl.formats.Text()}
    storage = gl.StreamWithMetadataStorage.create(tmp_path / "a", dtype="<u2", layers=layers)
    for number in range(2):
        with storage.writer(number) as shard:
            shard.append(np.arange(1000), {"topic": [(0, 400, "tides"), (400, 1000, "bread")]})
    storage.commit()
    found = json.loads(run("inspect", tmp_path / "a", "--json").stdout)
    assert found["layers"] == [{"name": "topic", "encoding": "text", "spans": 4, "payload_bytes": 20}]
    assert "layer: topic" in (shown := run("inspect", tmp_path / "a").stdout)
    assert "4 spans, payloads of 20 bytes, encoded as text" in shown


def test_a_changed_tokenizer_is_not_believed(run: Run, dataset: Path) -> None:
    path = dataset / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"<pad>", b"<bad>"))
    result = run("inspect", dataset, "--json", "--window", 8)
    assert result.exit_code == 0
    assert "not the one that the dataset was built with" in result.stderr
    assert "text" not in json.loads(result.stdout)["windows"][0]
    path.write_bytes(b"{}")
    assert "shown as numbers" in run("inspect", dataset).stderr
    path.unlink()
    result = run("inspect", dataset)
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_tokenizer_can_be_named(run: Run, tmp_path: Path, tokenizer_file: Path, dataset: Path) -> None:
    plain = write(tmp_path / "plain", np.frombuffer(b"hello", np.uint8))
    assert "text" not in json.loads(run("inspect", plain, "--json", "--window", 5).stdout)["windows"][0]
    result = run("inspect", plain, "--json", "--window", 5, "--tokenizer", "bytes")
    assert json.loads(result.stdout)["windows"][0]["text"] == "hello"
    assert result.stderr == ""
    result = run("inspect", dataset, "--tokenizer", "bytes", "--window", 2)
    assert "built with another tokenizer than bytes" in result.stderr
    assert run("inspect", dataset, "--tokenizer", tokenizer_file, "--window", 2).stderr == ""


def test_without_the_tokenizers_package_windows_are_numbers(
    run: Run, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    result = run("inspect", dataset, "--json", "--window", 8)
    assert result.exit_code == 0
    assert 'pip install "guideloom[cli]"' in result.stderr
    assert "text" not in json.loads(result.stdout)["windows"][0]


def test_fields_of_all_kinds(run: Run, tmp_path: Path) -> None:
    dtype = np.dtype([("tokens", "<i4"), ("score", "<f4"), ("concepts", "<u2", (2,)), ("mask", "?")])
    rows = np.zeros(40, dtype)
    rows["tokens"], rows["score"], rows["concepts"], rows["mask"] = -1, np.nan, [[7, 9]] * 40, True
    path = write(tmp_path / "mixed", rows, dtype, {"tokenizer": "bytes"})
    (window,) = json.loads(run("inspect", path, "--json", "--window", 40).stdout)["windows"]
    assert "text" not in window  # there are no bytes below zero
    assert window["fields"]["concepts"] == [[7, 9]] * 40
    assert window["fields"]["score"] == [None] * 40
    shown = run("inspect", path, "--window", 40).stdout
    assert "concepts uint16[2]" in shown
    assert "[7, 9] [7, 9]" in shown
    assert "True True" in shown
    assert shown.count("…") == 4


def test_hostile_text_has_no_effect_on_a_terminal(run: Run, tmp_path: Path) -> None:
    text = "\x1b[31m[bold]red[/bold]\r\u202ehidden"
    tokens = np.frombuffer(text.encode(), np.uint8)
    path = write(tmp_path / "evil", tokens, metadata={"tokenizer": "bytes", "no\x1bte": text})
    result = run("inspect", path, "--window", len(tokens))
    for letter in "\x1b\r\u202e":
        assert letter not in result.stdout
    assert result.stdout.count("[bold]red[/bold]") == 2


@pytest.mark.parametrize("rows", [0, 1, 63])
def test_less_than_a_window(run: Run, tmp_path: Path, rows: int) -> None:
    path = write(tmp_path / "small", np.zeros(rows, np.uint16))
    result = run("inspect", path)
    assert result.exit_code == 0
    assert "shorter than one window of 64" in result.stdout
    found = json.loads(run("inspect", path, "--json").stdout)
    assert (found["elements"], found["windows"]) == (rows, [])


def test_fewer_windows_than_samples(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "small", np.arange(10, dtype=np.uint16))
    windows = json.loads(run("inspect", path, "--json", "--window", 4, "--samples", 100).stdout)["windows"]
    assert [window["fields"]["tokens"] for window in windows] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_only_what_is_shown_is_read(run: Run, dataset: Path) -> None:
    """The first window lies in the first shard, so the files of the second are not even looked at."""
    for path in (dataset / "shards").glob("00000001-*"):
        path.unlink()
    assert run("inspect", dataset, "--samples", 1, "--window", 4).exit_code == 0


def test_damage_is_told(run: Run, dataset: Path) -> None:
    (path,) = (dataset / "shards").glob("00000000-*.bin")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    result = run("inspect", dataset, "--window", 4)
    assert result.exit_code == 1
    assert f"{path.name} is damaged" in result.stderr
    assert "Traceback" not in result.stderr
