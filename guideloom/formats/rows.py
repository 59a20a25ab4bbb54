"""From the user's data to rows of a schema: every value checked, none changed in silence."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._typing import AnyArray
from guideloom.formats.schema import Field, Schema

_NUMERIC_KINDS = "biufc"


def encode_rows(schema: Schema, data: Any, *, out: AnyArray | None = None) -> AnyArray:
    """Return `data` as rows of `schema`, exactly.

    Parameters
    ----------
    schema : Schema
        What a row holds.
    data : mapping of str to array-like, structured array, or array-like
        As `check_rows` takes it.
    out : structured array of shape (n,), n at least the number of rows, optional
        Filled from its start. Its dtype is ``schema.dtype``; padding bytes are left as they are.

    Returns
    -------
    structured array of shape (rows,) and dtype ``schema.dtype``
        The first rows of `out`, or a new array whose padding bytes are zero.

    Raises
    ------
    ValueError or TypeError
        As `check_rows` does, or if `out` is too short or of another dtype.
    """
    columns = check_rows(schema, data)
    num_rows = len(columns[0])
    if out is None:
        out = np.zeros(num_rows, schema.dtype) if schema.has_padding else np.empty(num_rows, schema.dtype)
    elif out.dtype != schema.dtype or len(out) < num_rows:
        raise ValueError(f"out has {len(out)} rows of {out.dtype}, but {num_rows} of {schema.dtype} are needed")
    rows = out[:num_rows]
    for field, column in zip(schema.fields, columns, strict=True):
        rows[field.name] = column
    return rows


def check_rows(schema: Schema, data: Any) -> list[AnyArray]:
    """Return one array per field of `schema` whose values can be assigned to that field unchanged.

    Parameters
    ----------
    schema : Schema
        What a row holds.
    data : mapping of str to array-like, structured array, or array-like
        A column for each field, of shape ``(rows, *field.shape)``: anything that `numpy.asarray` takes, of any byte
        order and stride. Integers may be of any dtype. A schema of one field also takes its column as such.

    Returns
    -------
    list of array
        In the order of the fields; views of `data` where possible.

    Raises
    ------
    ValueError
        If a value does not fit the dtype of its field (named with its position), a field is missing or unknown, or
        lengths or shapes differ.
    TypeError
        If a column is of a kind that its field does not take, such as floats for an integer field.
    """
    fields = schema.fields
    names: Iterable[Any] | None = None
    if isinstance(data, np.ndarray):  # first, since asking for a Mapping takes longer
        names = data.dtype.names
    elif isinstance(data, Mapping):
        names = data.keys()
    if names is not None:
        if schema.name_set != set(names):
            _refuse_names(schema, names)
        columns = [_check_column(field, data[field.name]) for field in fields]
    elif len(fields) == 1:
        return [_check_column(fields[0], data)]
    else:
        raise TypeError(
            f"rows of the fields {', '.join(schema.names)} are a mapping from field to array, or a structured array, "
            f"not {type(data).__name__}"
        )
    num_rows = len(columns[0])
    for field, column in zip(fields, columns, strict=True):
        if len(column) != num_rows:
            raise ValueError(
                f"field {field.name!r} has {len(column)} rows, but {fields[0].name!r} has {num_rows}; "
                "all fields need the same number"
            )
    return columns


def _check_column(field: Field, data: Any) -> AnyArray:
    column = data if type(data) is np.ndarray else _as_array(field, data)
    if column.shape[1:] != field.shape or column.ndim == 0:
        if column.shape != (0,):  # an empty list says nothing of the shape of a row
            raise ValueError(
                f"field {field.name!r} takes an array of shape {_row_shape(field)}, not one of shape {column.shape}"
            )
        column = column.reshape(0, *field.shape)
    if column.dtype is not field.dtype and column.dtype != field.dtype:
        return _check_values(field, column)
    return column


def _check_values(field: Field, column: AnyArray) -> AnyArray:
    """Check a column of another dtype than its field's."""
    source, target = column.dtype, field.dtype
    if source.kind == "O":
        return _check_objects(field, column)
    if source.kind not in _NUMERIC_KINDS:
        _refuse_kind(field, source.name)
    rounds = source.kind in "iu" and target.kind in "fc"  # of 64 bits, which NumPy calls safe
    if column.size == 0 or (not rounds and np.can_cast(source, target, "safe")):
        return column
    if source.kind in "iu" and target.kind in "biufc":
        low, high = _integer_limits(target)
        if np.minimum.reduce(column, axis=None) < low or np.maximum.reduce(column, axis=None) > high:
            _refuse_value(field, column, (column < low) | (column > high))
    elif (source.kind == "f" and target.kind in "fc") or (source.kind == "c" and target.kind == "c"):
        with np.errstate(over="ignore"):
            overflown = np.isfinite(column) & ~np.isfinite(column.astype(target))
        if overflown.any():
            _refuse_value(field, column, overflown)
    else:
        _refuse_kind(field, source.name)
    return column


def _check_objects(field: Field, column: AnyArray) -> AnyArray:
    """Check Python objects one by one: integers of more than 64 bits, or what a list had beside numbers."""
    if field.dtype.kind not in "biu":
        _refuse_kind(field, "object")
    low, high = _integer_limits(field.dtype)
    for position, value in np.ndenumerate(column):
        if not isinstance(value, (int, np.integer, np.bool_)):
            _refuse_kind(field, f"object ({value!r:.40} at position {_index(position)})")
        if not low <= int(value) <= high:
            _refuse_value(field, column, position)
    return column.astype(field.dtype)


def _as_array(field: Field, data: Any) -> AnyArray:
    try:
        column: AnyArray = np.asarray(data)
        if column.dtype.kind == "f" and field.dtype.kind in "biu" and isinstance(data, (list, tuple)):
            column = np.asarray(data, dtype=object)  # integers that have no common dtype became floats
    except Exception as error:  # of NumPy, or of the array-like itself
        raise TypeError(f"field {field.name!r} takes an array, which {type(data).__name__} is not: {error}") from error
    return column


def _integer_limits(target: np.dtype[Any]) -> tuple[int, int]:
    """Return the smallest and largest of the integers that `target` holds without a gap."""
    if target.kind == "b":
        return 0, 1
    if target.kind in "iu":
        limits = np.iinfo(target)
        return int(limits.min), int(limits.max)
    exact = 2 ** (np.finfo(target).nmant + 1)
    return -exact, exact


def _refuse_value(field: Field, column: AnyArray, refused: npt.NDArray[np.bool_] | tuple[int, ...]) -> None:
    position = refused if isinstance(refused, tuple) else tuple(np.argwhere(refused)[0].tolist())
    target = field.dtype
    reach = "" if target.kind == "c" else f" ({_reach(target)})"
    raise ValueError(
        f"field {field.name!r}: the value {column[position]} at position {_index(position)} does not fit "
        f"{target}{reach}"
    )


def _reach(target: np.dtype[Any]) -> str:
    if target.kind == "f":
        largest = np.finfo(target)
        return f"up to {largest.max:.5g}, integers up to {_integer_limits(target)[1]} exactly"
    low, high = _integer_limits(target)
    return f"{low} to {high}"


def _refuse_kind(field: Field, found: str) -> None:
    raise TypeError(f"field {field.name!r} of dtype {field.dtype} does not take {found}; convert it first")


def _refuse_names(schema: Schema, found: Iterable[Any]) -> None:
    found = list(found)
    missing = [name for name in schema.names if name not in found]
    unknown = [name for name in found if name not in schema.name_set]
    parts = []
    if missing:
        parts.append(f"the field {', '.join(map(repr, missing))} is missing")
    for name in unknown:
        near = difflib.get_close_matches(str(name), missing or schema.names, n=1)
        parts.append(f"the field {name!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else ""))
    raise ValueError(f"{'; '.join(parts)} (the schema has {', '.join(schema.names)})")


def _row_shape(field: Field) -> str:
    return f"({', '.join(map(str, ('rows', *field.shape)))}{',' if not field.shape else ''})"


def _index(position: tuple[int, ...]) -> str:
    return str(position[0]) if len(position) == 1 else str(position)
