import datetime
import enum
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.errors import ManifestError, UnknownEncodingError
from guideloom.formats.encoding import Encoding, NumericEncoding, find, sections_of
from tests.strategies import element_types, random_rows, row_dtypes

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def through(encoding: Encoding, value: Any) -> Any:
    """Encode and decode a value, with the encoding that a manifest would name."""
    found = find(encoding.name, encoding.options)
    assert type(found) is type(encoding)
    assert found.options == encoding.options
    return found.decode(memoryview(bytes(encoding.encode(value))))


@given(PLAIN)
def test_json_gives_back_plain_values(value: Any) -> None:
    assert through(gl.formats.JSON(), value) == value


def test_json_takes_what_msgspec_takes() -> None:
    class Colour(enum.Enum):
        RED = "red"

    value = {"day": datetime.date(2024, 2, 29), "id": uuid.UUID(int=7), "colour": Colour.RED}
    assert through(gl.formats.JSON(), value) == {"day": "2024-02-29", "id": str(uuid.UUID(int=7)), "colour": "red"}
    with pytest.raises(TypeError):
        gl.formats.JSON().encode(object())
    for lost in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"JSON does not have {lost}"):
            gl.formats.JSON().encode({"a": [1.5, None, (lost,)]})


@given(st.binary(), st.text())
def test_bytes_and_text_are_as_they_were(data: bytes, text: str) -> None:
    assert through(gl.formats.Bytes(), bytearray(data)) == data
    assert through(gl.formats.Text(), text) == text
    assert bytes(gl.formats.Text().encode(text)) == text.encode()


@pytest.mark.parametrize(("encoding", "value"), [(gl.formats.Bytes(), "text"), (gl.formats.Text(), b"bytes")])
def test_what_is_no_bytes_or_text_is_refused(encoding: Encoding, value: object) -> None:
    with pytest.raises(TypeError, match="a document of"):
        encoding.encode(value)


@given(element_types(), st.sampled_from([(), (3,), (2, 2)]), st.integers(0, 9), st.integers(0, 99))
def test_an_array_comes_back_little_endian(dtype: Any, shape: tuple[int, ...], length: int, seed: int) -> None:
    encoding = gl.formats.NumpyArray(dtype, shape)
    array = random_rows(np.dtype([("tokens", dtype, shape)]), length, seed)["tokens"]
    found = through(encoding, array)
    assert found.dtype.str in (dtype.newbyteorder("<").str, f"|{dtype.str[1:]}")
    np.testing.assert_array_equal(found, array)
    assert isinstance(encoding, NumericEncoding)
    assert b"".join(part.tobytes() for part in encoding.to_arrays(array)) == encoding.encode(array)


@given(st.lists(st.tuples(element_types(), st.integers(0, 5)), min_size=1, max_size=4), st.integers(0, 99))
def test_several_arrays_have_lengths_of_their_own(parts: list[tuple[Any, int]], seed: int) -> None:
    names = [f"part {i}" for i in range(len(parts))]
    encoding = gl.formats.NumpyArrays({name: dtype for name, (dtype, _) in zip(names, parts, strict=True)})
    value = {name: random_rows(dtype, length, seed) for name, (dtype, length) in zip(names, parts, strict=True)}
    found = through(encoding, value)
    assert list(found) == names
    for name, array in value.items():
        np.testing.assert_array_equal(found[name], array)


@given(row_dtypes(), st.integers(0, 9), st.integers(0, 99))
def test_rows_come_back_field_by_field(dtype: Any, length: int, seed: int) -> None:
    encoding = gl.formats.Rows(dtype)
    rows = random_rows(dtype, length, seed)
    found = through(encoding, rows)
    for name in dtype.names or ("tokens",):
        np.testing.assert_array_equal(found[name], rows[name] if dtype.names else rows)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_arrays_raise_a_plain_error(data: bytes) -> None:
    encoding = gl.formats.NumpyArrays({"a": "<i4", "b": "<f8"})
    try:
        value = encoding.decode(memoryview(data))
    except ValueError:
        return
    assert encoding.encode(value) == data


def test_integers_that_do_not_fit_and_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="70000 at position 1 does not fit uint16"):
        gl.formats.NumpyArray("<u2").encode([1, 70_000])
    with pytest.raises(TypeError, match="cannot store"):
        gl.formats.NumpyArray(object)
    with pytest.raises(TypeError, match="use Rows"):
        gl.formats.NumpyArray([("a", "<i4")])
    with pytest.raises(TypeError, match="a value is a mapping of 'a' to arrays"):
        gl.formats.NumpyArrays({"a": "<i4"}).encode([1])
    with pytest.raises(ValueError, match="1 to 1024 fields"):
        gl.formats.NumpyArrays({})


def sections(name: str, dtype: str = "<i4", *, shape: list[int] | None = None, offset: int = 0) -> Mapping[str, Any]:
    field = {"name": name, "dtype": dtype, "shape": shape or [], "offset": offset}
    return {"sections": [{"fields": [field], "itemsize": 8}]}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("numpy-array", {"dtype": "O"}),
        ("numpy-array", {"sections": []}),
        ("numpy-array", {"sections": [{"fields": [], "itemsize": 4}]}),
        ("numpy-array", sections("x", "<i8")),
        ("numpy-array", sections("tokens", "|O")),
        ("numpy-array", sections("tokens", "<i4", shape=[-1])),
        ("numpy-arrays", sections("a", offset=4)),
        ("numpy-rows", {"sections": 2 * [*sections("a")["sections"]]}),
        ("json", {"indent": 2}),
    ],
)
def test_options_that_an_encoding_does_not_take_are_refused(name: str, options: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{name!r} does not take the options"):
        find(name, options)


def test_an_encoding_of_ones_own_is_found_by_name() -> None:
    class Shifted(Encoding):
        name = "tests.shifted"

        def __init__(self, by: int) -> None:
            self.by = by

        @property
        def options(self) -> Mapping[str, Any]:
            return {"by": self.by}

        def encode(self, value: Any) -> bytes:
            return bytes((byte + self.by) % 256 for byte in value)

        def decode(self, data: memoryview) -> bytes:
            return bytes((byte - self.by) % 256 for byte in data)

    with pytest.raises(UnknownEncodingError, match=r"'tests.shifted'.*register.*Bytes\(\)"):
        find("tests.shifted", {"by": 3})
    gl.formats.register(Shifted)
    assert through(Shifted(3), b"abc") == b"abc"
    assert sections_of(Shifted(3)) == ()
    again = {"__qualname__": Shifted.__qualname__, "__module__": Shifted.__module__}
    gl.formats.register(type("Shifted", (Shifted,), again))  # as in a notebook, when its cell is run again
    with pytest.raises(ValueError, match="is taken by"):
        gl.formats.register(type("Other", (Shifted,), {}))


@pytest.mark.parametrize("name", ["", "Upper", "a" * 65, "../json", "with space", "-a", "a\n"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of an encoding"):
        gl.formats.register(type("Named", (gl.formats.Bytes,), {"name": name}))


def test_find_never_imports() -> None:
    for name in ("os.system", "pickle", "builtins:eval"):
        with pytest.raises(UnknownEncodingError):
            find(name, {})
    assert not issubclass(UnknownEncodingError, ManifestError)
