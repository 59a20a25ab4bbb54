"""Text to build from, and the command line called in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from guideloom.cli.app import guideloom
from tests.leaks import no_leaks  # noqa: F401 - for every test of this folder

Run = Callable[..., Result]

PROSE = [
    "Call me Ishmael.",
    "It was the best of times,\nit was the worst of times.\n",
    "Zwölf Boxkämpfer 😀",
    "the end",
]


@pytest.fixture
def run() -> Run:
    """Call the command line; any exception that is not an exit is a failure of the test."""

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(guideloom, [str(argument) for argument in arguments], catch_exceptions=False)

    return call


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE, whose end-of-text token is not its first, and which would cut texts if one let it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PROSE * 5, trainer)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    """A JSONL file of a few documents, with blank lines between."""
    path = tmp_path / "prose.jsonl"
    path.write_text("\n\n".join(json.dumps({"text": text, "id": i}) for i, text in enumerate(PROSE)), encoding="utf-8")
    return path
