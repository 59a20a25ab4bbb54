"""What turns values into stored bytes and back, registered by name: a manifest names its encoding, never code."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from guideloom._typing import AnyArray
from guideloom.errors import UnknownEncodingError
from guideloom.formats.schema import Schema

BytesLike: TypeAlias = bytes | bytearray | memoryview

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?", re.ASCII)

_registered: dict[str, type[Encoding]] = {}


class Encoding(Protocol):
    """Encodes values as bytes, and decodes them. Subclass it, or write the same members.

    Attributes
    ----------
    name : str
        What it is registered under: lower-case letters, digits, ``.``, ``_`` and ``-``, at most 64.

    Examples
    --------
    >>> @register
    ... class Reversed(Encoding):
    ...     name = "reversed"
    ...
    ...     def encode(self, value):
    ...         return value[::-1]
    ...
    ...     def decode(self, data):
    ...         return bytes(data)[::-1]
    """

    name: ClassVar[str]

    @property
    def options(self) -> Mapping[str, Any]:
        """Plain JSON that the manifest keeps, and `from_options` takes; none by default."""
        return {}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the encoding that a manifest describes; by default its class, called with the options."""
        return cls(**options)

    @abstractmethod
    def encode(self, value: Any) -> BytesLike:
        """Return the bytes of a value. Raise ``TypeError`` or ``ValueError`` for one that cannot be encoded."""

    @abstractmethod
    def decode(self, data: memoryview) -> Any:
        """Return the value of some bytes, which may be hostile; raise anything if they are none.

        The memory is that of the batch: copy what the value shall keep if the rest shall be freed.
        """


@runtime_checkable
class NumericEncoding(Protocol):
    """An encoding whose bytes are arrays, so that whole batches are decoded without a call for each value.

    The bytes of a value are, all little-endian: for each section but the last its elements, as uint32; then the array
    of each section, one behind the other.

    Attributes
    ----------
    sections : tuple of Schema
        At least one: what an element of each array holds. Names of fields are unlike over all sections.
    """

    sections: tuple[Schema, ...]

    def to_arrays(self, value: Any) -> Sequence[AnyArray]:
        """Return the array of each section: C-contiguous, its first axis the elements, ``row_bytes`` bytes each.

        Raise ``TypeError`` or ``ValueError`` for a value that cannot be encoded.
        """


EncodingT = TypeVar("EncodingT", bound=type[Encoding])


def register(encoding: EncodingT) -> EncodingT:
    """Make an encoding known by its name, so that `open_dataset` finds it; usable as a decorator.

    Parameters
    ----------
    encoding : type
        A class that fulfils `Encoding`.

    Raises
    ------
    ValueError
        If its name is not one, or taken by another class.
    """
    check_encoding_name(encoding.name)
    known = _registered.setdefault(encoding.name, encoding)
    if (known.__module__, known.__qualname__) != (encoding.__module__, encoding.__qualname__):
        raise ValueError(f"the name {encoding.name!r} is taken by {known.__module__}.{known.__qualname__}")
    _registered[encoding.name] = encoding  # a notebook's cell may be run again
    return encoding


def find(name: str, options: Mapping[str, Any]) -> Encoding:
    """Return the encoding that a manifest names.

    Raises
    ------
    UnknownEncodingError
        If none is registered under the name.
    ValueError
        If the options do not suit it.
    """
    encoding = _registered.get(name)
    if encoding is None:
        raise UnknownEncodingError(
            f"no encoding is registered under the name {name[:80]!r}: register its class with "
            "guideloom.formats.register before the dataset is opened, or open it with "
            "encoding=guideloom.formats.Bytes() for the stored bytes",
            name=name,
        )
    try:
        return encoding.from_options(options)
    except Exception as error:  # of the user's class, about options that may be hostile
        raise ValueError(
            f"the encoding {name!r} does not take the options {str(dict(options))[:200]}: {error}"
        ) from error


def sections_of(encoding: Encoding) -> tuple[Schema, ...]:
    """Return the sections of a numeric encoding; none of another."""
    return tuple(encoding.sections) if isinstance(encoding, NumericEncoding) else ()


def check_encoding_name(name: str) -> None:
    """Raise `ValueError` unless an encoding can have this name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no name of an encoding: use up to 64 lower-case letters, digits, '.', '_' and '-'"
        )
