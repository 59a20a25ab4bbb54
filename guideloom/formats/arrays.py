"""Numeric encodings: one array a value, several, or structured rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from guideloom._typing import AnyArray
from guideloom.formats.encoding import BytesLike, Encoding, register
from guideloom.formats.rows import check_rows, encode_rows
from guideloom.formats.schema import MAX_FIELDS, Schema, SchemaRecord

_COUNT = np.dtype("<u4")


class _Arrays(Encoding):
    """What the numeric encodings share: their bytes are arrays, as `NumericEncoding` says."""

    def __init__(self, sections: tuple[Schema, ...]) -> None:
        names = [name for section in sections for name in section.names]
        if not 1 <= len(names) <= MAX_FIELDS or len(set(names)) < len(names):
            raise ValueError(f"a value holds 1 to {MAX_FIELDS} fields with names of their own, not {names[:20]}")
        self.sections = sections

    @property
    def options(self) -> Mapping[str, Any]:
        """The sections, as a manifest writes schemas."""
        plain = msgspec.json.encode([section.record for section in self.sections])
        return {"sections": msgspec.json.decode(plain)}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the encoding that a manifest describes."""
        if set(options) != {"sections"}:
            raise ValueError("the only option of arrays is their sections")
        records = msgspec.convert(options["sections"], tuple[SchemaRecord, ...], strict=True)
        return cls._of_sections(tuple(map(Schema.from_record, records)))

    @classmethod
    @abstractmethod
    def _of_sections(cls, sections: tuple[Schema, ...]) -> Self:
        """Return the encoding of these sections, if it can have them."""

    @abstractmethod
    def to_arrays(self, value: Any) -> Sequence[AnyArray]:
        """Return the array of each section, checked."""

    @abstractmethod
    def _from_arrays(self, arrays: Sequence[AnyArray]) -> Any:
        """Return the value of the arrays of all sections, each of the dtype of its rows."""

    def encode(self, value: Any) -> BytesLike:
        """Return the bytes of the arrays of a value."""
        arrays = self.to_arrays(value)
        counts = np.array([len(array) for array in arrays[:-1]], _COUNT)
        return b"".join([counts.tobytes(), *(array.tobytes() for array in arrays)])

    def decode(self, data: memoryview) -> Any:
        """Return the value of some bytes, as a copy."""
        *first, last = self.sections
        if len(data) < _COUNT.itemsize * len(first):
            raise ValueError(f"{len(data)} bytes are too few for the lengths of {len(self.sections)} arrays")
        counts = np.frombuffer(data, _COUNT, len(first)).tolist()
        at = _COUNT.itemsize * len(first)
        room = len(data) - at - sum(n * section.row_bytes for n, section in zip(counts, first, strict=True))
        if room < 0 or room % last.row_bytes:
            raise ValueError(f"{len(data)} bytes are no arrays of {[*counts, '…']} elements")
        arrays = []
        for section, count in zip(self.sections, [*counts, room // last.row_bytes], strict=True):
            arrays.append(np.frombuffer(data, section.dtype, count, at).copy())
            at += count * section.row_bytes
        return self._from_arrays(arrays)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.sections == self.sections

    def __hash__(self) -> int:
        return hash((type(self), self.sections))


@register
class NumpyArray(_Arrays):
    """One array a value, of any length; read in batches as the field ``tokens``.

    Parameters
    ----------
    dtype : numpy dtype, or what `numpy.dtype` takes
        Of one element: bool, integer, float or complex.
    shape : tuple of int, default ()
        Of one element; a value has the shape ``(n, *shape)``.

    Raises
    ------
    TypeError or ValueError
        If an array of `dtype` cannot be stored.
    """

    name = "numpy-array"

    def __init__(self, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> None:
        plain = np.dtype((dtype, shape)) if shape else np.dtype(dtype)
        if plain.names is not None:
            raise TypeError("an array has a plain dtype; use Rows for a structured one")
        super().__init__((Schema.of(plain),))

    @classmethod
    def _of_sections(cls, sections: tuple[Schema, ...]) -> Self:
        field = sections[0].fields[0]
        encoding = cls(field.dtype, field.shape)
        if encoding.sections != sections:
            raise ValueError("one array has one section of one field 'tokens'")
        return encoding

    def __repr__(self) -> str:
        field = self.sections[0].fields[0]
        return f"NumpyArray({field.dtype.str!r}{f', {field.shape}' if field.shape else ''})"

    def to_arrays(self, value: Any) -> Sequence[AnyArray]:
        """Return the array, checked."""
        return (_checked(self.sections[0], value),)

    def _from_arrays(self, arrays: Sequence[AnyArray]) -> AnyArray:
        array: AnyArray = arrays[0]["tokens"]
        return array


@register
class NumpyArrays(_Arrays):
    """Several arrays a value, each of any length of its own.

    Parameters
    ----------
    arrays : mapping of str to dtype
        Name and dtype of each; ``("<f4", (3,))`` for elements that are arrays themselves.

    Raises
    ------
    TypeError or ValueError
        If an array of such a dtype cannot be stored.
    """

    name = "numpy-arrays"

    def __init__(self, arrays: Mapping[str, npt.DTypeLike]) -> None:
        super().__init__(tuple(Schema.of(np.dtype([(name, np.dtype(dtype))])) for name, dtype in arrays.items()))

    @classmethod
    def _of_sections(cls, sections: tuple[Schema, ...]) -> Self:
        fields = [section.fields[0] for section in sections]
        encoding = cls({field.name: np.dtype((field.dtype, field.shape)) for field in fields})
        if encoding.sections != sections:
            raise ValueError("each of several arrays is a section of one field")
        return encoding

    def __repr__(self) -> str:
        fields = [section.fields[0] for section in self.sections]
        return f"NumpyArrays({ {field.name: (field.dtype.str, field.shape) for field in fields} })"

    def to_arrays(self, value: Any) -> Sequence[AnyArray]:
        """Return the arrays of a mapping, checked."""
        names = [section.names[0] for section in self.sections]
        if not isinstance(value, Mapping) or set(value) != set(names):
            raise TypeError(f"a value is a mapping of {', '.join(map(repr, names))} to arrays, not {value!r:.80}")
        return [_checked(section, value[name]) for section, name in zip(self.sections, names, strict=True)]

    def _from_arrays(self, arrays: Sequence[AnyArray]) -> dict[str, AnyArray]:
        names = [section.names[0] for section in self.sections]
        return {name: array[name] for name, array in zip(names, arrays, strict=True)}


@register
class Rows(_Arrays):
    """NumPy structured rows: a value is an array of any number of rows, or a mapping of their columns.

    Parameters
    ----------
    dtype : numpy dtype, or what `numpy.dtype` takes
        As a stream takes it.

    Raises
    ------
    TypeError or ValueError
        If it holds objects, strings or nested structures, or no field.
    """

    name = "numpy-rows"

    def __init__(self, dtype: npt.DTypeLike) -> None:
        super().__init__((Schema.of(dtype),))

    @classmethod
    def _of_sections(cls, sections: tuple[Schema, ...]) -> Self:
        (section,) = sections
        return cls(section.dtype)

    def __repr__(self) -> str:
        return f"Rows({self.sections[0].dtype})"

    def to_arrays(self, value: Any) -> Sequence[AnyArray]:
        """Return the rows, checked."""
        return (encode_rows(self.sections[0], value),)

    def _from_arrays(self, arrays: Sequence[AnyArray]) -> AnyArray:
        return arrays[0]


def _checked(section: Schema, value: Any) -> AnyArray:
    """Return the column of a section of one field, as its bytes are stored."""
    field = section.fields[0]
    (column,) = check_rows(section, {field.name: value})
    return np.ascontiguousarray(column, field.dtype)
