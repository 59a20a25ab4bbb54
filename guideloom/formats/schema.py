"""The schema of a stream: what one row holds, and where in the row each field lies."""

import dataclasses
import functools
import itertools
import math
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from guideloom.errors import ManifestError

MAX_ROW_BYTES = 64 * 1024
MAX_FIELDS = 1024
MAX_FIELD_NAME_BYTES = 255
PLAIN_FIELD = "tokens"  # the field that a plain dtype becomes

# A file may only ever name one of these; none holds a pointer, a length or a codec.
_STORED_DTYPES = frozenset(
    ["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]
)
_MAX_NDIM = 32


class FieldRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field of a schema, as the manifest writes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class SchemaRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema, as the manifest writes it."""

    fields: tuple[FieldRecord, ...]
    itemsize: int


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a row.

    Parameters
    ----------
    name : str
        Non-empty, at most 255 bytes of UTF-8, without control characters.
    dtype : numpy.dtype
        Little-endian dtype of one element: bool, integer, float or complex.
    shape : tuple of int
        Shape that each row holds; ``()`` for one element.
    offset : int
        First byte of the field in its row.

    Raises
    ------
    ValueError or TypeError
        If the field is not one that can be stored.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    def __post_init__(self) -> None:
        check_field_name(self.name)
        if self.dtype.str not in _STORED_DTYPES:
            raise TypeError(
                f"field {self.name!r} has dtype {self.dtype}, which a stream cannot store; use bool, int8 to int64, "
                "uint8 to uint64, float16 to float64, complex64 or complex128, or sub-arrays of these"
            )
        if len(self.shape) > _MAX_NDIM or not all(0 < length <= MAX_ROW_BYTES for length in self.shape):
            raise ValueError(
                f"field {self.name!r} has shape {self.shape}: each of at most {_MAX_NDIM} dimensions must be at least "
                f"1, and a row at most {MAX_ROW_BYTES} bytes"
            )
        if not 0 <= self.offset <= MAX_ROW_BYTES - self.num_bytes:
            raise ValueError(
                f"field {self.name!r} of {self.num_bytes} bytes at offset {self.offset} does not lie in a row of at "
                f"most {MAX_ROW_BYTES} bytes"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of the field in one row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """What one row of a stream holds, byte for byte.

    Two schemas are equal when their rows are: the same fields, in the same order, at the same offsets.

    Parameters
    ----------
    fields : tuple of Field
        In the order of the dtype that they came from, which need not be that of their offsets.
    row_bytes : int
        Bytes of a row, padding included.

    Attributes
    ----------
    dtype : numpy.dtype
        Structured dtype of a row, little-endian.
    name_set : frozenset of str
        Names of the fields.

    Raises
    ------
    ValueError or TypeError
        If there is no field, two have one name, or two share a byte, or the row is longer than 64 KiB.
    """

    fields: tuple[Field, ...]
    row_bytes: int
    dtype: np.dtype[Any] = dataclasses.field(init=False, repr=False, compare=False)
    name_set: frozenset[str] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("a schema needs at least one field; this dtype has none")
        if len(self.fields) > MAX_FIELDS:
            raise ValueError(f"a schema has at most {MAX_FIELDS} fields, not {len(self.fields)}; use sub-array fields")
        names = self.names
        if len(set(names)) < len(names):
            twice = next(name for position, name in enumerate(names) if name in names[:position])
            raise ValueError(f"two fields are named {twice!r}; names must differ")
        in_place = sorted(self.fields, key=lambda field: field.offset)
        for field, following in itertools.pairwise(in_place):
            if following.offset < field.offset + field.num_bytes:
                raise ValueError(f"fields {field.name!r} and {following.name!r} overlap in the row; store them apart")
        last = in_place[-1]
        if not last.offset + last.num_bytes <= self.row_bytes <= MAX_ROW_BYTES:
            raise ValueError(
                f"a row has {self.row_bytes} bytes, but must hold its fields, which end at byte "
                f"{last.offset + last.num_bytes}, in at most {MAX_ROW_BYTES} bytes"
            )
        object.__setattr__(self, "name_set", frozenset(names))
        object.__setattr__(self, "dtype", _row_dtype(self.fields, self.row_bytes))

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> "Schema":
        """Return the schema of rows of `dtype`, stored little-endian.

        Parameters
        ----------
        dtype : numpy dtype, or what `numpy.dtype` takes
            Structured, with its offsets and padding kept exactly; or plain, which becomes one field ``tokens``.

        Raises
        ------
        TypeError
            If a field is of an object, string, date or nested dtype, or of a float wider than 8 bytes.
        ValueError
            If there are no fields, or they are empty, overlap, carry titles or make a row longer than 64 KiB.
        """
        if dtype is None:  # which numpy.dtype takes for float64
            raise TypeError("a stream needs a dtype; None is not one")
        row = np.dtype(dtype)
        if row.kind == "V" and row.subdtype is None and row.names is None:
            raise TypeError(f"dtype {row} is raw bytes without fields; name the fields, or use uint8")
        if row.names is None:
            return cls((_field(PLAIN_FIELD, row, 0),), row.itemsize)
        assert row.fields is not None
        if len(row.fields) != len(row.names):
            raise ValueError("a field of this dtype has a title, which a stream cannot store; use its name alone")
        fields = []
        for name in row.names:
            dtype_here, offset = row.fields[name][:2]
            fields.append(_field(name, dtype_here, offset))
        return cls(tuple(fields), row.itemsize)

    @classmethod
    def from_record(cls, record: SchemaRecord) -> "Schema":
        """Return the schema that a manifest names.

        Raises
        ------
        ManifestError
            If the record is not one that `record` makes. Nothing is allocated from its numbers before they are checked.
        """
        if len(record.fields) > MAX_FIELDS:
            raise ManifestError(f"schema: {len(record.fields)} fields are more than {MAX_FIELDS}")
        try:
            return cls(tuple(_field_of_record(field) for field in record.fields), record.itemsize)
        except (TypeError, ValueError) as error:
            raise ManifestError(f"schema: {error}") from error

    @property
    def record(self) -> SchemaRecord:
        """The schema as the manifest writes it."""
        fields = (FieldRecord(field.name, field.dtype.str, field.shape, field.offset) for field in self.fields)
        return SchemaRecord(tuple(fields), self.row_bytes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(field.name for field in self.fields)

    @property
    def has_padding(self) -> bool:
        """Whether a row has bytes that belong to no field."""
        return self.row_bytes > sum(field.num_bytes for field in self.fields)

    def __getitem__(self, name: str) -> Field:
        """Return the field of this name, or raise `KeyError`."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def part(self, names: Iterable[str], *, base: int, row_bytes: int) -> "Schema":
        """Return the schema of the fields `names` in rows that are bytes ``base`` to ``base + row_bytes`` of these.

        Raises
        ------
        KeyError
            If a name is not that of a field.
        ValueError
            If a field does not lie within the part.
        """
        fields = [self[name] for name in names]
        return Schema(tuple(dataclasses.replace(field, offset=field.offset - base) for field in fields), row_bytes)


def _field(name: str, dtype: np.dtype[Any], offset: int) -> Field:
    shape: tuple[int, ...] = ()
    while dtype.subdtype is not None:
        dtype, inner = dtype.subdtype
        shape += inner
    if dtype.names is not None:
        raise TypeError(f"field {name!r} is a structure itself; name its parts as fields of the row")
    if dtype.itemsize == 0 or 0 in shape:
        raise ValueError(f"field {name!r} of dtype {dtype} and shape {shape} holds no bytes; leave it out")
    plain = dtype.newbyteorder("<")
    return Field(name, np.dtype(plain.str) if plain.str in _STORED_DTYPES else plain, shape, offset)


def _field_of_record(record: FieldRecord) -> Field:
    if record.dtype not in _STORED_DTYPES:
        raise TypeError(
            f"field {record.name!r} has dtype {record.dtype!r}; a stream holds {', '.join(sorted(_STORED_DTYPES))}"
        )
    return Field(record.name, np.dtype(record.dtype), record.shape, record.offset)


@functools.lru_cache(maxsize=64)
def _row_dtype(fields: tuple[Field, ...], row_bytes: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [(field.dtype, field.shape) for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": row_bytes,
        }
    )


def check_field_name(name: str) -> None:
    """Raise `ValueError` unless a field can have this name."""
    if not name:
        raise ValueError("a field has no name")
    if any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in name):
        raise ValueError(f"the field name {name!r} holds a control character or half a surrogate pair")
    if len(name.encode()) > MAX_FIELD_NAME_BYTES:
        raise ValueError(f"the field name {name[:32]!r}… is longer than {MAX_FIELD_NAME_BYTES} bytes")
