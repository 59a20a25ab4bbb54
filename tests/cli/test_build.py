"""``guideloom build``: what the dataset holds, and that it appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import guideloom as gl
from guideloom._typing import AnyArray
from tests.cli.conftest import PROSE, Run

ROOT = Path(gl.__file__).parents[1]

# The command line, with a tokenizer that says what it does, and stays in the text "wait here" for ever.
WAITING = """
import signal, time
from guideloom.cli.tokenizer import BytesTokenizer
encode = BytesTokenizer.encode
def slow(self, texts):
    print("encoding", *texts, flush=True)
    while "wait here" in texts:
        time.sleep(0.01)
    return encode(self, texts)
BytesTokenizer.encode = slow
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without
from guideloom.__main__ import main
main()
"""


def stream(path: Path) -> AnyArray:
    dataset = gl.open_dataset(path, window=1)
    with dataset.sync_reader() as reader:
        tokens: AnyArray = reader.read_batch(slice(None))["tokens"]
        return tokens[:, 0]


def joined(texts: list[str], eos: list[int]) -> list[int]:
    return [number for text in texts for number in [*text.encode(), *eos]]


@pytest.mark.parametrize("shards", [1, 3, 20])
@pytest.mark.parametrize(("eos", "ids"), [(None, [256]), ("none", []), ("0", [0])])
def test_bytes(run: Run, prose: Path, tmp_path: Path, shards: int, eos: str | None, ids: list[int]) -> None:
    out = tmp_path / "new" / "corpus"
    options = [] if eos is None else ["--eos", eos]
    result = run("build", prose, "--out", out, "--tokenizer", "bytes", "--shards", shards, *options)
    assert result.exit_code == 0, result.output
    assert f"guideloom inspect {out}" in result.stdout
    found = stream(out)
    assert found.tolist() == joined(PROSE, ids)
    assert found.dtype == np.uint16
    manifest = gl.StreamStorage.open(out).manifest
    assert len(manifest.shards) == shards
    assert manifest.metadata == {
        "tokenizer": "bytes",
        "vocab_size": 257,
        "eos": ids[0] if ids else None,
        "num_documents": len(PROSE),
        "guideloom": gl.__version__,
    }
    assert sorted(path.name for path in out.iterdir()) == ["guideloom.json", "shards", "snapshots"]
    assert [path.name for path in out.parent.iterdir()] == ["corpus"]


@pytest.mark.parametrize(("dtype", "stored"), [("auto", np.uint16), ("uint16", np.uint16), ("uint32", np.uint32)])
def test_a_tokenizer_file(
    run: Run, prose: Path, tmp_path: Path, tokenizer_file: Path, dtype: str, stored: type[np.generic]
) -> None:
    out = tmp_path / "corpus"
    result = run("build", prose, "--out", out, "--tokenizer", tokenizer_file, "--shards", 2, "--dtype", dtype)
    assert result.exit_code == 0, result.output
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found = stream(out)
    assert found.tolist() == [number for text in PROSE for number in [*tokenizer.encode(text).ids, 1]]
    assert found.dtype == stored
    metadata = gl.StreamStorage.open(out).manifest.metadata
    assert metadata["tokenizer_sha256"] == hashlib.sha256(tokenizer_file.read_bytes()).hexdigest()
    assert (metadata["tokenizer"], metadata["vocab_size"], metadata["eos"]) == ("tokenizer.json", 300, 1)
    assert (out / "tokenizer.json").read_bytes() == tokenizer_file.read_bytes()


def test_the_fingerprint_is_that_of_the_text(run: Run, tmp_path: Path) -> None:
    """Lines and files of the same documents, in another place, make the same dataset."""
    folder, lines = tmp_path / "in", tmp_path / "lines.jsonl"
    folder.mkdir()
    for number, text in enumerate(PROSE):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8", newline="")
    lines.write_text("".join(json.dumps({"body": text}) + "\n" for text in PROSE))
    prints = []
    for name, source in (("a", folder), ("b", lines)):
        arguments = ["--tokenizer", "bytes", "--shards", 1, "--text-key", "body", "--json"]
        outcome = json.loads(run("build", source, "--out", tmp_path / name, *arguments).stdout)
        prints.append(outcome["fingerprint"])
        assert outcome["documents"] == len(PROSE)
        assert outcome["tokens"] == len(joined(PROSE, [256]))
        assert outcome["shards"] == 1
        assert outcome["dtype"] == "uint16"
    assert prints[0] == prints[1]


def test_long_documents(run: Run, tmp_path: Path) -> None:
    texts = ["ä" * 700_000 + "\n" + "b" * 10, "c\n" * 300_000]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    run("build", tmp_path / "0.txt", tmp_path / "1.txt", "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert bytes(stream(tmp_path / "out").astype("<u2")) == bytes(np.array(joined(texts, [256]), "<u2"))


def test_the_default_is_a_shard_for_so_much_input(
    run: Run, prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guideloom.cli.build._SHARD_BYTES", 100)
    run("build", prose, "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert len(gl.StreamStorage.open(tmp_path / "out").manifest.shards) == -(-prose.stat().st_size // 100)


def test_an_existing_dataset_is_kept(run: Run, prose: Path, tmp_path: Path) -> None:
    arguments = ("build", prose, "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert run(*arguments).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    result = run(*arguments)
    assert result.exit_code == 2
    assert "holds a dataset; name another folder" in result.stderr
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_other_files_are_kept(run: Run, prose: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run("build", prose, "--out", tmp_path / "out", "--tokenizer", "bytes").exit_code == 0  # it was empty
    for there in (tmp_path / "full", tmp_path / "file"):
        shutil.copytree(tmp_path / "out" / "shards", there) if there.name == "full" else there.write_text("mine")
        result = run("build", prose, "--out", there, "--tokenizer", "bytes")
        assert result.exit_code == 2
        assert "is there already" in result.stderr


@pytest.mark.parametrize("bad", [b"\xff", b""])
def test_bad_input_leaves_nothing(run: Run, tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.txt").write_bytes(bad)
    result = run("build", tmp_path / "in", "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert result.exit_code == 1
    assert ("bad.txt is no UTF-8 text" if bad else "there is no text in") in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_input_that_changes_meanwhile_leaves_nothing(
    run: Run, prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = gl.StreamStorage.create

    def create_late(*args: object, **options: object) -> gl.StreamStorage:
        prose.write_text('{"text": "another"}')
        return create(*args, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("guideloom.storage.stream.StreamStorage.create", create_late)
    result = run("build", prose, "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert result.exit_code == 1
    assert "changed while it was read" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["prose.jsonl"]


def start_waiting(folder: Path) -> subprocess.Popen[str]:
    """Start a build in another process, and return once it is in the second of three shards."""
    texts = ["the first", "wait here", "the third"]
    (folder / "lines.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    command = [sys.executable, "-c", WAITING, "build", "lines.jsonl", "--out", "out", "--tokenizer", "bytes"]
    process = subprocess.Popen(
        [*command, "--shards", "3"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "wait here" in line:
            return process
    raise AssertionError(process.communicate())


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = start_waiting(tmp_path)
    assert (tmp_path / ".out.building").is_dir()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == "\ninterrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["lines.jsonl"]


def test_a_killed_build_continues(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start_waiting(tmp_path)
    process.kill()
    process.communicate()
    assert not (tmp_path / "out").exists()
    building = tmp_path / ".out.building" / "shards"
    first = {path.name: path.stat().st_ino for path in building.glob("00000000-*")}
    assert len(first) == 3
    assert list(building.glob(".00000001-*"))  # what was being written
    monkeypatch.chdir(tmp_path)
    result = run("build", "lines.jsonl", "--out", "out", "--tokenizer", "bytes", "--shards", 3)
    assert result.exit_code == 0, result.output
    assert "continuing the build of out" in result.stderr
    assert {path.name: path.stat().st_ino for path in Path("out/shards").glob("00000000-*")} == first
    assert not list(Path("out").rglob(".*"))
    assert not Path(".out.building").exists()
    assert run("build", "lines.jsonl", "--out", "anew", "--tokenizer", "bytes", "--shards", 3).exit_code == 0
    prints = {gl.open_dataset(name, window=1).fingerprint for name in ("out", "anew")}
    assert len(prints) == 1


def test_a_build_that_was_killed_as_it_ended_is_finished(
    run: Run, prose: Path, tmp_path: Path, tokenizer_file: Path
) -> None:
    arguments = ["build", str(prose), "--out", str(tmp_path / "out"), "--tokenizer", str(tokenizer_file)]
    code = """
import os, pathlib, signal
pathlib.Path.unlink = lambda path: os.kill(os.getpid(), signal.SIGKILL)  # the last step before the dataset appears
from guideloom.__main__ import main
main()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.building", "prose.jsonl"]
    result = run(*arguments)
    assert result.exit_code == 0
    assert "continuing" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "prose.jsonl"]
    names = ["guideloom.json", "shards", "snapshots", "tokenizer.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert len(list((tmp_path / "out" / "shards").iterdir())) == 3


@pytest.mark.parametrize("change", ["options", "input"])
def test_a_killed_build_of_something_else_begins_anew(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    process = start_waiting(tmp_path)
    process.kill()
    process.communicate()
    monkeypatch.chdir(tmp_path)
    if change == "input":
        Path("lines.jsonl").write_text('{"text": "other"}')
    eos = "7" if change == "options" else "256"
    result = run("build", "lines.jsonl", "--out", "out", "--tokenizer", "bytes", "--shards", 3, "--eos", eos)
    assert result.exit_code == 0
    assert "continuing" not in result.stderr
    assert int(stream(Path("out"))[-1]) == int(eos)
    assert not Path(".out.building").exists()


def test_a_terminal_gets_a_progress_bar(prose: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = ["-m", "guideloom", "build", str(prose), "--out", str(tmp_path / "out"), "--tokenizer", "bytes"]
    with subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=follower,
    ) as process:
        os.close(follower)
        shown = b""
        while select.select([leader], [], [], 30)[0]:
            try:
                data = os.read(leader, 4096)
            except OSError:  # the terminal has no other end any more
                break
            shown += data
        os.close(leader)
        assert process.stdout is not None
        assert b"tokens" in process.stdout.read()
    assert process.returncode == 0
    assert b"checking" in shown
    assert b"tokenizing" in shown
