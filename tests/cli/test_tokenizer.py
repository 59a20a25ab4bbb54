"""Ids of text, text of ids, and what the options about them mean."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import click
import numpy as np
import pytest

from guideloom.cli.tokenizer import BytesTokenizer, FileTokenizer, load_tokenizer, token_dtype
from tests.cli.conftest import PROSE


def test_bytes_are_ids() -> None:
    tokenizer = BytesTokenizer()
    ids = tokenizer.encode(PROSE)
    assert [bytes(part) for part in ids] == [text.encode() for text in PROSE]
    stream = np.concatenate([ids[0], [256], ids[1], [256]])
    assert tokenizer.decode(stream) == f"{PROSE[0]}<|end|>{PROSE[1]}<|end|>"
    assert tokenizer.decode(np.array([0xC3, 256])) == "\ufffd<|end|>"
    assert int(stream.max()) < tokenizer.num_ids


def test_a_tokenizer_file_encodes_all_of_a_text(tokenizer_file: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_file))
    ids = tokenizer.encode([*PROSE, "a"])
    assert [tokenizer.decode(part) for part in ids] == [*PROSE, "a"]  # neither cut nor padded to four
    assert tokenizer.name == "tokenizer.json"
    assert tokenizer.sha256 == hashlib.sha256(tokenizer_file.read_bytes()).hexdigest()
    assert tokenizer.num_ids == 300


def test_the_largest_id_counts_not_the_number_of_tokens(tokenizer_file: Path) -> None:
    file = json.loads(tokenizer_file.read_bytes())
    vocabulary = file["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 70_000
    assert FileTokenizer("with a gap", json.dumps(file).encode()).num_ids == 70_001


@pytest.mark.parametrize(
    ("option", "meaning"),
    [(None, 1), ("<pad>", 0), ("<|endoftext|>", 1), ("none", None), ("299", 299), ("0", 0)],
)
def test_eos_of_a_file(tokenizer_file: Path, option: str | None, meaning: int | None) -> None:
    assert load_tokenizer(str(tokenizer_file)).eos(option) == meaning


@pytest.mark.parametrize("option", ["300", "-1", "<eos>", ""])
def test_an_unknown_eos_is_refused(tokenizer_file: Path, option: str) -> None:
    with pytest.raises(click.BadParameter, match=r"id below 300|its special tokens: <pad>"):
        load_tokenizer(str(tokenizer_file)).eos(option)


def test_a_tokenizer_without_a_usual_end_asks_for_one(tokenizer_file: Path) -> None:
    file = tokenizer_file.read_bytes().replace(b"<|endoftext|>", b"<fin>")
    tokenizer = FileTokenizer("odd", file)
    with pytest.raises(click.BadParameter, match="<fin>"):
        tokenizer.eos(None)
    assert tokenizer.eos("<fin>") == 1


@pytest.mark.parametrize(("option", "meaning"), [(None, 256), ("256", 256), ("0", 0), ("none", None)])
def test_eos_of_bytes(option: str | None, meaning: int | None) -> None:
    assert BytesTokenizer().eos(option) == meaning


@pytest.mark.parametrize("option", ["257", "x", "-1", "١"])
def test_an_unknown_eos_of_bytes_is_refused(option: str) -> None:
    with pytest.raises(click.BadParameter):
        BytesTokenizer().eos(option)


@pytest.mark.parametrize(
    ("option", "num_ids", "dtype"),
    [("auto", 1, "u2"), ("auto", 65536, "u2"), ("auto", 65537, "u4"), ("uint16", 65536, "u2"), ("uint32", 5, "u4")],
)
def test_dtype(option: str, num_ids: int, dtype: str) -> None:
    assert token_dtype(option, num_ids) == np.dtype(dtype)


def test_a_dtype_that_is_too_small_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="uint32"):
        token_dtype("uint16", 65537)


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="'bytes'"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(click.ClickException, match=r"no tokenizer\.json"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))
