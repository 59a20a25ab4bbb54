import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.errors import ManifestError
from guideloom.formats.schema import MAX_FIELDS, MAX_ROW_BYTES, FieldRecord, Schema, SchemaRecord

STORED = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]

names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)
shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@st.composite
def dtypes(draw: st.DrawFn) -> np.dtype[np.void]:
    fields = draw(
        st.lists(st.tuples(names, st.sampled_from(STORED), shapes), min_size=1, max_size=5, unique_by=lambda f: f[0])
    )
    offsets, end = [], 0
    for _, base, shape in fields:
        offsets.append(end + draw(st.integers(0, 9)))
        end = offsets[-1] + np.dtype((base, shape)).itemsize
    order = draw(st.permutations(range(len(fields))))
    return np.dtype(
        {
            "names": [fields[i][0] for i in order],
            "formats": [(fields[i][1], fields[i][2]) for i in order],
            "offsets": [offsets[i] for i in order],
            "itemsize": end + draw(st.integers(0, 9)),
        }
    )


@given(dtypes())
def test_a_dtype_comes_back_from_its_record_byte_for_byte(dtype: np.dtype[np.void]) -> None:
    schema = Schema.of(dtype)
    assert schema.dtype == dtype
    record = msgspec.json.decode(msgspec.json.encode(schema.record), type=SchemaRecord)
    again = Schema.from_record(record)
    assert again == schema
    assert hash(again) == hash(schema)
    assert again.dtype == dtype
    assert again.dtype.itemsize == dtype.itemsize == schema.row_bytes
    for field in again.fields:
        assert dtype.fields is not None
        stored, offset = dtype.fields[field.name][:2]
        assert (field.dtype, field.shape, field.offset) == (stored.base, stored.shape, offset)


@given(dtypes())
def test_byte_order_does_not_matter(dtype: np.dtype[np.void]) -> None:
    assert Schema.of(dtype.newbyteorder(">")) == Schema.of(dtype)
    assert Schema.of(dtype.newbyteorder(">")).dtype == dtype


def test_an_aligned_dtype_keeps_its_padding_and_differs_from_the_packed_one() -> None:
    parts = [("start", "<i4"), ("length", "<i8")]
    aligned, packed = Schema.of(np.dtype(parts, align=True)), Schema.of(np.dtype(parts))
    assert ([field.offset for field in aligned.fields], aligned.row_bytes) == ([0, 8], 16)
    assert ([field.offset for field in packed.fields], packed.row_bytes) == ([0, 4], 12)
    assert aligned != packed
    assert aligned.has_padding
    assert not packed.has_padding


def test_a_plain_dtype_becomes_the_field_tokens() -> None:
    assert Schema.of(np.uint16) == Schema.of(np.dtype([("tokens", "<u2")])) == Schema.of(">u2")
    assert Schema.of(("<i4", (2, 3))) == Schema.of(np.dtype([("tokens", "<i4", (2, 3))]))


def test_nested_sub_arrays_are_one_shape() -> None:
    inner = np.dtype(("<u2", (2,)))
    assert Schema.of(np.dtype((inner, (3,))))["tokens"].shape == (3, 2)


def test_fields_are_found_by_name() -> None:
    schema = Schema.of(np.dtype([("tokens", "<u2"), ("mask", "u1", (4,))]))
    assert schema["mask"].offset == 2
    assert schema["mask"].num_bytes == 4
    with pytest.raises(KeyError, match="masks"):
        schema["masks"]


@pytest.mark.parametrize(
    ("dtype", "error", "message"),
    [
        (None, TypeError, "None"),
        ("O", TypeError, "object"),
        ("S8", TypeError, r"\|S8"),
        ("U8", TypeError, "<U8"),
        ("M8[s]", TypeError, "datetime64"),
        ("m8[s]", TypeError, "timedelta64"),
        ("V8", TypeError, "raw bytes"),
        ([("a", "V8")], TypeError, "'a'"),
        ([("a", [("b", "<i4")])], TypeError, "'a' is a structure"),
        ([("a", "<i4"), ("b", "O")], TypeError, "'b'"),
        ([], ValueError, "no|none"),
        ("S0", ValueError, "no bytes"),
        ([("a", "<i4", (0,))], ValueError, "no bytes"),
        ([("a", "<i4", (3, 0, 2))], ValueError, "no bytes"),
        ([(("title", "a"), "<i4")], ValueError, "title"),
        ([("a\n", "<i4")], ValueError, "control"),
        ([("a" * 256, "<i4")], ValueError, "255"),
        (("u1", (MAX_ROW_BYTES + 1,)), ValueError, "65536"),
        (("u1", (2, MAX_ROW_BYTES)), ValueError, "65536"),
        ([(f"f{i}", "u1") for i in range(MAX_FIELDS + 1)], ValueError, "1024"),
        ({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]}, ValueError, "'a' and 'b' overlap"),
        ({"names": ["a"], "formats": ["<i4"], "itemsize": MAX_ROW_BYTES + 1}, ValueError, "65536"),
    ],
)
def test_what_a_stream_cannot_store_is_refused(dtype: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Schema.of(dtype)  # type: ignore[arg-type]  # some are no dtypes at all


@pytest.mark.skipif(np.dtype("g").itemsize == 8, reason="long double is a float64 on this machine")
def test_wide_floats_are_refused() -> None:
    with pytest.raises(TypeError, match="float"):
        Schema.of("g")


def test_the_largest_row_is_accepted() -> None:
    assert Schema.of(("u1", (MAX_ROW_BYTES,))).row_bytes == MAX_ROW_BYTES


@pytest.mark.parametrize(
    ("fields", "itemsize"),
    [
        ([], 0),
        ([("a", "|O", (), 0)], 8),
        ([("a", "O", (), 0)], 8),
        ([("a", "|S4", (), 0)], 4),
        ([("a", "|V4", (), 0)], 4),
        ([("a", "<M8[s]", (), 0)], 8),
        ([("a", ">i4", (), 0)], 4),
        ([("a", "i4", (), 0)], 4),
        ([("a", "int32", (), 0)], 4),
        ([("a", "<i4,<i4", (), 0)], 8),
        ([("a", "(2,)<i4", (), 0)], 8),
        ([("a", "<f16", (), 0)], 16),
        ([("a", "", (), 0)], 4),
        ([("", "<i4", (), 0)], 4),
        ([("a\x00", "<i4", (), 0)], 4),
        ([("a", "<i4", (), 0), ("a", "<i4", (), 4)], 8),
        ([("a", "<i4", (), 0), ("b", "<i4", (), 3)], 8),
        ([("a", "<i4", (), 0), ("b", "<i4", (), 0)], 4),
        ([("a", "<i4", (), -1)], 4),
        ([("a", "<i4", (), 1)], 4),
        ([("a", "<i4", (), 2**62)], 2**62 + 4),
        ([("a", "<i4", (), 2**70)], 4),
        ([("a", "<i4", (), 0)], 3),
        ([("a", "<i4", (), 0)], -4),
        ([("a", "<i4", (), 0)], 2**40),
        ([("a", "<i4", (0,), 0)], 4),
        ([("a", "<i4", (-1,), 0)], 4),
        ([("a", "<i4", (-1, -1), 0)], 4),
        ([("a", "<i4", (2**62,), 0)], 2**62),
        ([("a", "|u1", (2**20, 2**20), 0)], 4),
        ([("a", "|u1", (1,) * 100, 0)], 1),
        ([("a", "|u1", (2,) * 31, 0)], 1),
        ([(f"f{i}", "|u1", (), i) for i in range(MAX_FIELDS + 1)], MAX_FIELDS + 1),
    ],
)
def test_hostile_records_are_refused(fields: list[tuple[str, str, tuple[int, ...], int]], itemsize: int) -> None:
    record = SchemaRecord(tuple(FieldRecord(*field) for field in fields), itemsize)
    with pytest.raises(ManifestError):
        Schema.from_record(record)


@given(
    st.lists(
        st.builds(
            FieldRecord,
            name=names | st.just(""),
            dtype=st.sampled_from([*(np.dtype(base).str for base in STORED), "|O", ">i4"]),
            shape=st.lists(st.integers(-2, 70_000), max_size=3).map(tuple),
            offset=st.integers(-3, 70_000),
        ),
        max_size=4,
    ),
    st.integers(-1, 70_000),
)
def test_any_record_is_a_schema_or_an_error(fields: list[FieldRecord], itemsize: int) -> None:
    record = SchemaRecord(tuple(fields), itemsize)
    try:
        schema = Schema.from_record(record)
    except ManifestError:
        return
    assert schema.record == record
    taken = sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in fields)
    assert taken <= schema.dtype.itemsize == itemsize <= MAX_ROW_BYTES
