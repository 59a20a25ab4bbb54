"""The user's own metadata in a manifest: plain JSON, within bounds, read back as it was given."""

import json
import math
from collections.abc import Callable
from typing import Any

MAX_METADATA_BYTES = 1024 * 1024
MAX_DEPTH = 32


def encode_metadata(metadata: dict[str, Any]) -> bytes:
    """Return `metadata` as JSON.

    Parameters
    ----------
    metadata : dict
        Of ``str``, ``int`` of 64 bits, finite ``float``, ``bool``, ``None``, lists and dicts with ``str`` keys.

    Raises
    ------
    TypeError
        If a value or a key is of another type; JSON would return it as something else.
    ValueError
        If a number is out of range, the nesting deeper than 32, or the JSON longer than 1 MiB.
    """
    if type(metadata) is not dict:
        raise TypeError(f"metadata is a dict, not {type(metadata).__name__}")
    _check(metadata, place="metadata", depth=1)
    data = json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()
    _check_size(data)
    return data


def decode_metadata(data: bytes | memoryview) -> dict[str, Any]:
    """Return the metadata that `encode_metadata` made into `data`.

    Raises
    ------
    TypeError or ValueError
        If `data` is not such JSON, or holds a key twice.
    """
    _check_size(data)
    metadata = _loads(data, _unique)
    if type(metadata) is not dict:
        raise TypeError(f"metadata is a JSON object, not {type(metadata).__name__}")
    _check(metadata, place="metadata", depth=1)
    return metadata


def check_unique_keys(data: bytes) -> None:
    """Raise `ValueError` if `data` are no JSON, or if an object in them holds a key twice."""
    _loads(data, lambda pairs: _unique(pairs) and None)  # no object is kept, so hostile data stay small


def _loads(data: bytes | memoryview, hook: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    try:
        return json.loads(str(data, "utf-8"), object_pairs_hook=hook, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} is given twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _check_size(data: bytes | memoryview) -> None:
    if len(data) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata of {len(data)} bytes is longer than {MAX_METADATA_BYTES}; keep it in a file")


def _check(value: Any, *, place: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"metadata is nested deeper than {MAX_DEPTH}")
    if value is None or type(value) is bool:
        return
    if type(value) is str:
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
    elif type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{place} is {value}, which does not fit in 64 bits")
    elif type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON cannot hold")
    elif type(value) is dict:
        for key, entry in value.items():
            if type(key) is not str:
                raise TypeError(f"{place} has the key {key!r}; JSON has only str keys")
            key.encode()
            _check(entry, place=f"{place}[{key!r}]", depth=depth + 1)
    elif type(value) is list:
        for index, entry in enumerate(value):
            _check(entry, place=f"{place}[{index}]", depth=depth + 1)
    else:
        raise TypeError(f"{place} is a {type(value).__name__}; metadata is plain JSON")
