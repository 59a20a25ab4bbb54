"""The parsers of untrusted bytes under a fuzzer that looks for new paths through them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import guideloom as gl
from tests.adversity.programs import ROOT
from tests.damage import LAYOUTS
from tests.loader.samples import dataset_of

SECONDS = 300


@pytest.mark.skipif(os.environ.get("GUIDELOOM_PROVE") != "1", reason="takes minutes: GUIDELOOM_PROVE=1 runs it")
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs atheris: pip install atheris")
def test_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    """M4: from manifests of every layout and a state on, for a bounded time."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    words = set()
    seeds = [data for layout in LAYOUTS.values() for name, data in layout.files(256).items() if name.endswith(".json")]
    with gl.Loader(dataset_of(10)) as loader:
        seeds.append(json.dumps(loader.state_dict()).encode())
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
        words |= set(seed.decode().split('"')[1::2])
    dictionary = tmp_path / "words"
    dictionary.write_text(
        "".join(f'"\\"{word}\\""\n' for word in sorted(words) if word.isascii() and word.isprintable())
    )
    command = [sys.executable, "-m", "tests.adversity.fuzz_parsers", str(corpus), f"-dict={dictionary}"]
    command += [f"-max_total_time={SECONDS}", "-max_len=4096", "-rss_limit_mb=1024", "-timeout=10"]
    command += [f"-artifact_prefix={tmp_path}/"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=2 * SECONDS + 100)
    assert result.returncode == 0, result.stderr[-5000:]
    assert "Done" in result.stderr
