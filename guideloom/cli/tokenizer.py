"""Tokenizers: text to ids and back, with what a dataset notes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
import numpy.typing as npt

from guideloom._typing import AnyArray

# The dataset carries its tokenizer under this name, so that its windows can be read as text.
TOKENIZER_FILE = "tokenizer.json"
BYTES = "bytes"

# What the usual tokenizers call the token that ends a document.
_USUAL_EOS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[SEP]")


class Tokenizer(Protocol):
    """Makes ids of text, and text of ids."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def file(self) -> bytes | None:
        """Its ``tokenizer.json``, if it has one."""

    @property
    def sha256(self) -> str | None:
        """The hash of that file, in hexadecimal."""

    @property
    def num_ids(self) -> int:
        """All ids are below it."""

    def encode(self, texts: Sequence[str]) -> list[AnyArray]:
        """Return the ids of each text, without special tokens."""

    def decode(self, ids: AnyArray) -> str:
        """Return the text of ids."""

    def eos(self, option: str | None) -> int | None:
        """Return the id that the option ``--eos`` means; None for none."""


class BytesTokenizer:
    """The bytes of UTF-8 as ids; 256 ends a document."""

    name = BYTES
    sha256 = None
    num_ids = 257
    file = None

    def encode(self, texts: Sequence[str]) -> list[AnyArray]:
        """Return the bytes of each text."""
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: AnyArray) -> str:
        """Return the text of the bytes, with a sign where a document ends."""
        parts = np.split(ids, np.flatnonzero(ids > 255))
        texts = [part[part < 256].astype(np.uint8).tobytes().decode(errors="replace") for part in parts]
        return "<|end|>".join(texts)

    def eos(self, option: str | None) -> int | None:
        """Return the id that ends a document."""
        if option is None:
            return 256
        return None if option == "none" else _eos_number(option, self.num_ids)


class FileTokenizer:
    """A tokenizer of Hugging Face's ``tokenizers``.

    Parameters
    ----------
    name : str
        What it is called.
    file : bytes
        Its ``tokenizer.json``.

    Raises
    ------
    click.ClickException
        If the file is no tokenizer, or the package is not installed.
    """

    def __init__(self, name: str, file: bytes) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise click.UsageError(
                'a tokenizer.json needs the package tokenizers: pip install "guideloom[cli]"'
            ) from error
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(file)
        except Exception as error:  # the package raises nothing narrower
            raise click.ClickException(f"{name} is no tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name = name
        self.file = file
        self.sha256 = hashlib.sha256(file).hexdigest()
        self.num_ids = 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, texts: Sequence[str]) -> list[AnyArray]:
        """Return the ids of each text, without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: AnyArray) -> str:
        """Return the text of ids, special tokens included."""
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def eos(self, option: str | None) -> int | None:
        """Return the id of the token that ends a document; digits are an id, not a token."""
        if option == "none":
            return None
        if option is not None and _is_number(option):
            return _eos_number(option, self.num_ids)
        names = _USUAL_EOS if option is None else (option,)
        found = [number for number in map(self._tokenizer.token_to_id, names) if number is not None]
        if found:
            return int(found[0])
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        what = "has no token of a usual name that ends a document" if option is None else f"has no token {option!r}"
        among = f" (its special tokens: {' '.join(special[:16])})" if special else ""
        raise click.BadParameter(
            f"{self.name} {what}{among}; name a token or an id, or say 'none'", param_hint="'--eos'"
        )


def load_tokenizer(option: str) -> Tokenizer:
    """Return the tokenizer that the option ``--tokenizer`` names: ``bytes``, or a ``tokenizer.json``."""
    if option == BYTES:
        return BytesTokenizer()
    path = Path(option)
    if not path.is_file():
        raise click.BadParameter(
            f"there is no file {option}; give the path of a tokenizer.json, or 'bytes'", param_hint="'--tokenizer'"
        )
    return FileTokenizer(path.name, path.read_bytes())


def token_dtype(option: str, num_ids: int) -> npt.DTypeLike:
    """Return the dtype that the option ``--dtype`` means for so many ids."""
    dtype = np.dtype(option if option != "auto" else "uint16" if num_ids <= 2**16 else "uint32")
    if num_ids - 1 > np.iinfo(dtype).max:
        raise click.BadParameter(
            f"the tokenizer has ids up to {num_ids - 1:,}, and {dtype} ends at {np.iinfo(dtype).max:,}; use uint32",
            param_hint="'--dtype'",
        )
    return dtype


def _eos_number(option: str, num_ids: int) -> int:
    if not _is_number(option) or int(option) >= num_ids:
        raise click.BadParameter(f"{option!r} is no id below {num_ids:,}, and not 'none'", param_hint="'--eos'")
    return int(option)


def _is_number(option: str) -> bool:
    return option.isascii() and option.isdecimal()
