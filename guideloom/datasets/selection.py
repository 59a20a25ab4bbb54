"""Which fields are delivered, and as what."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from guideloom._speedups.reading import BYTES_CODE, TYPE_CODES
from guideloom.formats.schema import Field

Fields: TypeAlias = Sequence[str] | Mapping[str, npt.DTypeLike | None] | None


@dataclass(frozen=True, slots=True)
class Output:
    """A field as it is delivered.

    Parameters
    ----------
    field : Field
        As stored.
    dtype : numpy.dtype
        As delivered, in the machine's byte order.
    """

    field: Field
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """The field's name."""
        return self.field.name

    @property
    def num_bytes(self) -> int:
        """Bytes that one row of the field takes as delivered."""
        return self.dtype.itemsize * self.num_elements

    @property
    def num_elements(self) -> int:
        """Elements in one row of the field."""
        return int(np.prod(self.field.shape, dtype=np.int64))

    def code(self, field_offset: int) -> tuple[int, int, int, int, int]:
        """Return offset, stored bytes, elements and type codes for `ReadJob`."""
        stored = self.field.dtype
        cell = stored.itemsize * self.num_elements
        if stored == self.dtype:
            return field_offset, cell, self.num_elements, BYTES_CODE, BYTES_CODE
        return field_offset, cell, self.num_elements, _code(stored), _code(self.dtype)


def select(stored: Iterable[Field], fields: Fields) -> tuple[Output, ...]:
    """Return the outputs that `fields` asks for.

    Parameters
    ----------
    stored : iterable of Field
        Those that there are.
    fields : None, sequence of str, or mapping of str to dtype
        All fields as stored, some as stored, or some converted. ``None`` as a dtype means as stored.

    Raises
    ------
    ValueError
        If a field does not exist, is named twice, or cannot be converted to that dtype.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names or a mapping of names to dtypes; did you mean [{fields!r}]?")
    if fields is not None and not fields:
        raise ValueError("fields is empty; leave it out to read all fields")
    by_name = {field.name: field for field in stored}
    names = list(by_name if fields is None else fields)
    if len(set(names)) < len(names):
        raise ValueError(f"fields names a field twice: {names}")
    outputs = []
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(str(name), by_name, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"there is no field {name!r} among {list(by_name)}{hint}")
        field = by_name[name]
        wanted = fields[name] if isinstance(fields, Mapping) else None
        outputs.append(Output(field, _delivered(field, wanted)))
    return tuple(outputs)


def _delivered(field: Field, wanted: npt.DTypeLike | None) -> np.dtype[Any]:
    dtype = field.dtype if wanted is None else np.dtype(wanted)
    dtype = dtype.newbyteorder("=")
    if dtype == field.dtype:
        return dtype
    convertible = _code(dtype) >= 0 and _code(field.dtype) >= 0 and dtype.kind != "b"
    if not convertible or (field.dtype.kind == "f" and dtype.kind != "f"):
        raise ValueError(f"field {field.name!r} is stored as {field.dtype} and cannot be delivered as {dtype}")
    return dtype


def _code(dtype: np.dtype[Any]) -> int:
    return TYPE_CODES.get("u1" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}", -1)
