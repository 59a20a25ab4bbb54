"""Encodings of what is no array: bytes, text and JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from guideloom.formats.encoding import BytesLike, Encoding, register


@register
class Bytes(Encoding):
    """Bytes as they are: also what shows the stored bytes of any other encoding."""

    name = "bytes"

    def encode(self, value: Any) -> BytesLike:
        """Return the bytes of a bytes-like object."""
        try:
            return memoryview(value).cast("B")
        except TypeError:
            raise TypeError(f"a document of bytes is a contiguous bytes-like object, not {value!r:.80}") from None

    def decode(self, data: memoryview) -> bytes:
        """Return the bytes."""
        return bytes(data)


@register
class Text(Encoding):
    """Text, as UTF-8."""

    name = "text"

    def encode(self, value: Any) -> BytesLike:
        """Return the UTF-8 of a str."""
        if not isinstance(value, str):
            raise TypeError(f"a document of text is a str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: memoryview) -> str:
        """Return the text."""
        return str(data, "utf-8")


@register
class JSON(Encoding):
    """What JSON can hold, and what msgspec makes JSON of, such as dataclasses and dates; read back as plain types."""

    name = "json"

    def encode(self, value: Any) -> BytesLike:
        """Return the JSON of a value; infinities and NaN, which JSON does not have, are refused."""
        data = msgspec.json.encode(value)
        if b"null" in data:  # what they would become
            _refuse_infinite(msgspec.to_builtins(value))
        return data

    def decode(self, data: memoryview) -> Any:
        """Return dicts, lists, str, int, float, bool and None."""
        return msgspec.json.decode(data)


def _refuse_infinite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON does not have {value}; say null, or a string")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_infinite(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_infinite(item)
