"""Which fields are delivered, and as what: values survive, or the reader says that they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.datasets.selection import select
from guideloom.errors import ConversionError
from guideloom.formats.schema import Schema
from tests.datasets.opened import KINDS, OneMethod, backend_of, in_memory
from tests.reference import ReferenceWindows, assert_equal
from tests.strategies import INTEGERS_AND_FLOATS, random_rows
from tests.streams import shards_of, stream_files

SCHEMA = Schema.of(np.dtype([("tokens", "<u2"), ("loss_mask", "u1"), ("concepts", "<i4", (4,)), ("half", "<f2")]))


def outputs(fields: Any) -> list[tuple[str, str]]:
    return [(output.name, output.dtype.str) for output in select(SCHEMA.fields, fields)]


def test_all_fields_as_stored_some_or_converted() -> None:
    everything = [("tokens", "<u2"), ("loss_mask", "|u1"), ("concepts", "<i4"), ("half", "<f2")]
    assert outputs(None) == everything
    assert outputs(["concepts", "tokens"]) == [everything[2], everything[0]]
    assert outputs(("tokens",)) == [everything[0]]
    assert outputs({"tokens": np.int64, "concepts": None}) == [("tokens", "<i8"), everything[2]]
    assert outputs({"tokens": "float32", "half": "float16"}) == [("tokens", "<f4"), everything[3]]
    assert outputs({"tokens": ">i8"}) == [("tokens", "<i8")]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (["token"], ValueError, "no field 'token' .* did you mean 'tokens'"),
        ({"xyz": None}, ValueError, "no field 'xyz'"),
        (["tokens", "tokens"], ValueError, "twice"),
        ([], ValueError, "empty"),
        ({}, ValueError, "empty"),
        ("tokens", TypeError, r"did you mean \['tokens'\]"),
        ([3], ValueError, "no field 3"),
        ({"half": "float32"}, ValueError, "stored as float16 and cannot be delivered as float32"),
        ({"tokens": "bool"}, ValueError, "cannot be delivered as bool"),
        ({"tokens": "complex64"}, ValueError, "cannot be delivered"),
        ({"tokens": "U3"}, ValueError, "cannot be delivered"),
        ({"tokens": [("a", "u1"), ("b", "u1")]}, ValueError, "cannot be delivered"),
        ({"tokens": "nonsense"}, TypeError, "nonsense"),
    ],
)
def test_what_cannot_be_is_refused_when_the_dataset_is_opened(
    fields: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        select(SCHEMA.fields, fields)


def test_floats_do_not_become_integers_and_bools_may_become_numbers() -> None:
    with pytest.raises(ValueError, match="cannot be delivered as int64"):
        select(Schema.of("f4").fields, {"tokens": "i8"})
    assert select(Schema.of("?").fields, {"tokens": "u1"})[0].dtype == np.uint8
    assert select(Schema.of("?").fields, {"tokens": "f4"})[0].dtype == np.float32


@given(
    st.sampled_from(INTEGERS_AND_FLOATS),
    st.sampled_from(INTEGERS_AND_FLOATS),
    st.lists(st.integers(-(2**63), 2**64 - 1), min_size=4, max_size=4),
    st.sampled_from([(), (3,), (2, 2)]),
)
def test_a_value_arrives_as_it_is_or_not_at_all(
    stored: str, wanted: str, values: list[int], shape: tuple[int, ...]
) -> None:
    """A conversion gives what NumPy's gives; an integer that does not fit is an error, never another number."""
    dtype = np.dtype([("before", "u1"), ("x", stored, shape)])
    rows = np.zeros(8, dtype)
    info = np.iinfo(stored) if stored[0] != "f" else None
    fitting = [value for value in values if info is None or info.min <= value <= info.max] or [1]
    rows["x"][...] = np.resize(np.array(fitting, stored), rows["x"].shape)
    if stored[0] == "f" and wanted[0] != "f":
        with pytest.raises(ValueError, match="cannot be delivered"):
            in_memory([rows], window=4, fields={"x": wanted})
        return
    dataset = in_memory([rows], window=4, fields={"x": wanted})
    target = np.iinfo(wanted) if wanted[0] != "f" else None
    with dataset.sync_reader() as reader:
        if target is None or all(target.min <= int(value) <= target.max for value in rows["x"][:4].flat):
            assert_equal(reader.read_batch([0]), ReferenceWindows(rows, 4, 4).batch([0], {"x": wanted}))
        else:
            with pytest.raises(ConversionError, match=f"'x' holds a value .* does not fit {np.dtype(wanted)}"):
                reader.read_batch([0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_value_that_does_not_fit_is_named(kind: str) -> None:
    """Promise 4: field, file, byte and sample; the other batches arrive."""
    rows = np.zeros(600, np.dtype([("mask", "u1"), ("ids", "<u2", (2,))]))
    rows["ids"][:, 1] = np.arange(600)
    files = stream_files(shards_of(rows, [300, 300]))
    with backend_of(kind, files) as backend:
        dataset = gl.open_dataset(backend, window=10, fields={"ids": np.uint8})
        with dataset.sync_reader() as reader:
            assert reader[24]["ids"][:, 1].tolist() == list(range(240, 250))
            with pytest.raises(ConversionError) as caught:
                reader[25]
            error = caught.value
            assert (error.field, error.path, error.offset, error.sample) == ("ids", "shards/00000-0.bin", 256 * 5, 25)
            assert f"byte {256 * 5}" in str(error)
            assert "sample 25" in str(error)
            assert reader[3]["ids"][:, 1].tolist() == list(range(30, 40))


def test_only_what_is_asked_for_is_read() -> None:
    """Column groups that hold no wanted field are not touched, neither data nor checksums."""
    rows = random_rows(np.dtype([("tokens", "<u2"), ("loss_mask", "u1")]), 500, 1)
    files = stream_files([rows], groups=[["tokens"], ["loss_mask"]])
    read: list[str] = []

    class Recording(OneMethod):
        async def read_range(self, path: str, offset: int, length: int) -> bytes:
            read.append(path)
            return await super().read_range(path, offset, length)

    dataset = gl.open_dataset(Recording(files), window=10, fields=["loss_mask"])
    with dataset.sync_reader() as reader:
        assert list(reader[0]) == ["loss_mask"]
    assert {path for path in read if path.startswith("shards")} == {"shards/00000-1.bin", "shards/00000-1.crc32c"}


def test_fields_can_be_chosen_anew() -> None:
    rows = random_rows(np.dtype([("tokens", "<u2"), ("loss_mask", "u1")]), 50, 1)
    dataset = in_memory([rows], window=10, stride=5, offset=3, fields={"tokens": None, "loss_mask": "i8"}, verify=False)
    assert [dataset.requested_dtype(output) for output in dataset.outputs] == [False, True]
    other = dataset.with_fields(["loss_mask"])
    assert [output.name for output in other.outputs] == ["loss_mask"]
    assert (len(other), other.stride, other.offset, other.verify) == (len(dataset), 5, 3, False)
    assert not other.requested_dtype(other.outputs[0])
