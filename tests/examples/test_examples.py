"""The examples, in small, as a newcomer runs them."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import guideloom as gl
from guideloom.cli.app import guideloom

ROOT = Path(gl.__file__).parents[1]
EXAMPLES = ROOT / "examples"
NUM_TOKENS = 20_000
WINDOW = 32
BATCH_SIZE = 32


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def train(corpus: Path, checkpoint: Path, **options: int) -> subprocess.CompletedProcess[str]:
    small = {"window": WINDOW, "batch_size": BATCH_SIZE, "width": 16, "layers": 1, "save_every": 20, **options}
    words = [word for name, value in small.items() for word in (f"--{name.replace('_', '-')}", value)]
    return run("train.py", corpus, "--checkpoint", checkpoint, *words)


def load(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(script).stem, EXAMPLES / script)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "corpus"
    written = run("write_dataset.py", path, "--tokens", NUM_TOKENS, "--vocab-size", 512, "--shards", 3)
    assert (written.returncode, written.stderr) == (0, "")
    return path


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_help(script: str) -> None:
    shown = run(script, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "default: " in shown.stdout


def test_the_dataset_is_real_text_with_a_mask(corpus: Path) -> None:
    dataset = gl.open_dataset(corpus, window=1)
    assert len(dataset) >= NUM_TOKENS
    assert len(dataset.manifest.shards) == 3
    with dataset.sync_reader() as reader:
        stream = {name: array[:, 0] for name, array in reader.read_batch(slice(None)).items()}
    metadata = dataset.manifest.metadata
    begins = np.roll(stream["tokens"] == metadata["eos"], 1)  # the stream ends with the end of a document
    assert begins.sum() == metadata["num_documents"]
    assert begins[0]
    np.testing.assert_array_equal(stream["loss_mask"], ~begins)
    assert len(np.unique(stream["tokens"])) > 300
    shown = CliRunner().invoke(guideloom, ["inspect", str(corpus), "--json", "--window", "200", "--samples", "1"])
    assert " are a convenient way" in json.loads(shown.stdout)["windows"][0]["text"]


def digest_of(corpus: Path, steps: int) -> str:
    """Return the digest that train.py should arrive at, by way of NumPy."""
    fields = {"tokens": "int64", "loss_mask": None}
    dataset = gl.open_dataset(corpus, window=WINDOW + 1, stride=WINDOW, fields=fields)
    digest = ""
    with gl.Loader(dataset, BATCH_SIZE, shuffle=True, seed=17, drop_last=True) as loader:
        for batch in itertools.islice(itertools.chain(loader, loader), steps):
            data = batch["loss_mask"].tobytes() + batch["tokens"].tobytes()
            digest = hashlib.sha256(digest.encode() + data).hexdigest()
    return digest


def test_training_is_killed_and_resumes(corpus: Path, tmp_path: Path) -> None:
    """The kill comes in the second epoch, ten steps after the last checkpoint."""
    checkpoint = tmp_path / "runs" / "model.pt"
    epoch = (gl.open_dataset(corpus, window=1).num_elements - 1) // WINDOW // BATCH_SIZE
    saved_at = epoch + 4
    killed = train(corpus, checkpoint, kill_at=saved_at + 10, save_every=saved_at, steps=200)
    assert killed.returncode == -signal.SIGKILL
    assert f"killed at step {saved_at + 10}" in killed.stdout
    saved = torch.load(checkpoint, weights_only=True)
    assert len(saved["losses"]) == saved_at
    assert (saved["loader"]["epoch"], saved["loader"]["step"]) == (1, 4)
    assert [path.name for path in checkpoint.parent.iterdir()] == ["model.pt"]

    steps = saved_at + 20
    resumed = train(corpus, checkpoint, kill_at=saved_at + 10, steps=steps)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"resumed at step {saved_at}" in resumed.stdout
    assert f"all {steps} batches are the same" in resumed.stdout
    assert re.findall("sha256 ([0-9a-f]{64})", resumed.stdout) == [digest_of(corpus, steps)] * 2
    assert re.search(r"[\d,]+ tokens/s", resumed.stdout)
    assert re.search(r"waited for data: [\d.]+ ms a step, [\d.]+ % of the time", resumed.stdout)
    losses = [float(loss) for loss in re.findall(r"steps from +\d+: loss +([\d.]+)", resumed.stdout)]
    assert len(losses) in (9, 10)
    assert losses[-1] < losses[0] - 0.3


@pytest.fixture(scope="module")
def twenty_steps(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = tmp_path_factory.mktemp("runs") / "model.pt"
    assert train(corpus, checkpoint, steps=20).returncode == 0
    return checkpoint


@pytest.mark.parametrize(("part", "steps"), [("digest", 20), ("loader", 25)])
def test_the_proof_can_fail(corpus: Path, tmp_path: Path, twenty_steps: Path, part: str, steps: int) -> None:
    saved = torch.load(twenty_steps, weights_only=True)
    dataset = gl.open_dataset(corpus, window=WINDOW + 1, stride=WINDOW)
    with gl.Loader(dataset, BATCH_SIZE, shuffle=True, seed=17, drop_last=True) as loader:
        next(iter(loader))  # a state of another step than the one that was reached
        saved[part] = loader.state_dict() if part == "loader" else saved[part][::-1]
    torch.save(saved, tmp_path / "model.pt")
    resumed = train(corpus, tmp_path / "model.pt", steps=steps)
    assert resumed.returncode == 1
    assert resumed.stderr == "they differ\n"


def test_the_quick_start(tmp_path: Path) -> None:
    data, runs = tmp_path / "data", tmp_path / "runs"
    for stale in (data / "corpus" / "guideloom.json", runs / "model.pt"):  # of a run before
        stale.parent.mkdir(parents=True)
        stale.write_text("old")
    steps = ("--steps", 8, "--kill-at", 5, "--save-every", 3)
    story = run("quickstart.py", "--data", data, "--runs", runs, "--tokens", 20_000, *steps)
    assert (story.returncode, story.stderr) == (0, "")
    assert "resumed at step 3" in story.stdout
    assert "all 8 batches are the same" in story.stdout
    assert story.stdout.count("\n== ") == 6  # a title and a time for each script
    assert re.search(r"all as it should be, in \d+ s", story.stdout)


def test_the_quick_start_notices_that_nobody_was_killed(tmp_path: Path) -> None:
    folders = ("--data", tmp_path / "data", "--runs", tmp_path / "runs", "--tokens", 20_000)
    story = run("quickstart.py", *folders, "--steps", 2, "--kill-at", 9)
    assert story.returncode == 1
    assert story.stderr == "train.py ended with 0, not with -9\n"


def test_the_async_pipeline(tmp_path: Path) -> None:
    for made in ("wrote", "StreamDataset"):
        shown = run("async_pipeline.py", tmp_path / "corpus", "--window", 64, "--readers", 2)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith(made)
    dataset = gl.open_dataset(tmp_path / "corpus", window=64)
    assert f"2 readers brought {len(dataset):,} windows" in shown.stdout
    assert re.search(r"the loop ticked \d+ times, at worst [\d.]+ ms late", shown.stdout)


def test_the_custom_backend_is_short_and_conforms() -> None:
    shown = run("custom_backend.py", "--window", 64)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == "the backend conforms\nread 100 windows from corpus.db, each once\n"
    source = (EXAMPLES / "custom_backend.py").read_text()
    backend = source[source.index("class SQLiteBackend") : source.index("def store")]
    assert len(backend.rstrip().splitlines()) < 30


@pytest.mark.parametrize("num_readers", [1, 3])
def test_the_async_pipeline_counts_every_token(corpus: Path, num_readers: int) -> None:
    dataset = gl.open_dataset(corpus, window=50, fields=["tokens"])
    statistics, late = asyncio.run(load("async_pipeline.py").pipeline(dataset, num_readers))
    with dataset.sync_reader() as reader:
        tokens = reader.read_batch(slice(None))["tokens"]
    np.testing.assert_array_equal(statistics.counts, np.bincount(tokens.reshape(-1), minlength=2**16))
    assert statistics.windows == len(dataset)
    assert isinstance(late, list)


def test_an_error_ends_the_async_pipeline(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("async_pipeline.py")

    def fail(*_: object) -> None:
        raise ArithmeticError("no more")

    monkeypatch.setattr(module.Statistics, "add", fail)
    dataset = gl.open_dataset(corpus, window=50, fields=["tokens"])
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(asyncio.wait_for(module.pipeline(dataset, 3), 20))
    assert caught.value.subgroup(ArithmeticError) is not None


def test_documents_are_written_read_and_trained_on(tmp_path: Path) -> None:
    result = run("documents.py", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "1000 chats, from 0 to 999: What is new about weather?" in result.stdout
    assert "2000 messages in an epoch" in result.stdout
    assert "lengths [89, 82, 53], offsets [0, 89, 171, 224]" in result.stdout
    tokens = re.search(r"an epoch has (\d+) tokens, read in two parts, and (\d+) as nested", result.stdout)
    assert tokens
    assert tokens[1] == tokens[2]
    assert len(gl.open_dataset(tmp_path / "tokens")) == 1000


def test_a_stream_with_metadata_is_written_read_and_trained_on(tmp_path: Path) -> None:
    result = run("stream_with_metadata.py", tmp_path / "a")
    assert result.returncode == 0, result.stderr
    assert "the layer is in snapshot 2" in result.stdout
    assert re.search(r"article \d+ about \w+: tokens 0 to \d+ of the window, \d+ of the stream", result.stdout)
    assert "0 tokens of the batch are in no article" in result.stdout
    dataset = gl.open_dataset(tmp_path / "a", window=256, layers=["document"])
    with gl.Loader(dataset, 4, shuffle=True, seed=17, drop_last=True) as loader:
        num_spans = sum(len(batch["document"]) for batch in loader)
    epoch = re.search(r"an epoch has (\d+) runs", result.stdout)
    assert epoch
    assert int(epoch[1]) == num_spans  # articles side by side: each span is a run


def test_layouts_are_compared() -> None:
    result = run("compare_layouts.py")
    assert result.returncode == 0, result.stderr
    for name in ("stream", "stream with metadata", "documents"):
        assert re.search(rf"^{name} +[\d,]+ +[\d,]+  \w+: ", result.stdout, re.MULTILINE)
    assert re.search(r"window 7 holds \d+ tokens of the page '\w+'", result.stdout)
