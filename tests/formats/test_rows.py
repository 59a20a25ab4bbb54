from collections import UserDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.formats.rows import check_rows, encode_rows
from guideloom.formats.schema import Schema

TOKENS = Schema.of("<u2")
PAIR = Schema.of(np.dtype([("tokens", "<u2"), ("loss_mask", "u1")]))
CONCEPTS = Schema.of(np.dtype([("tokens", "<u2"), ("concepts", "<i4", (2,))]))
ALIGNED = Schema.of(np.dtype([("a", "<i4"), ("b", "<i8")], align=True))

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


@pytest.mark.parametrize(
    "column",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        [np.int64(1), 2, 3],
        np.array([1, 2, 3], ">i8"),
        np.array([1, 2, 3], ">u2"),
        np.array([1, 9, 2, 9, 3], "<u2")[::2],
        np.array([3, 2, 1], "<u4")[::-1],
        np.array([1, 2, 3], object),
    ],
    ids=repr,
)
def test_a_column_may_have_any_form(column: Any) -> None:
    expected = np.array([(1,), (2,), (3,)], TOKENS.dtype)
    for data in (column, {"tokens": column}, UserDict(tokens=column)):
        rows = encode_rows(TOKENS, data)
        assert rows.dtype == TOKENS.dtype
        np.testing.assert_array_equal(rows, expected)


def test_torch_tensors_are_columns() -> None:
    torch = pytest.importorskip("torch")
    rows = encode_rows(PAIR, {"tokens": torch.arange(5), "loss_mask": torch.ones(5, dtype=torch.bool)})
    assert rows["tokens"].tolist() == [0, 1, 2, 3, 4]
    assert rows["loss_mask"].tolist() == [1] * 5
    with pytest.raises(ValueError, match="65536 at position 1"):
        encode_rows(TOKENS, torch.tensor([65535, 65536]))
    with pytest.raises(TypeError, match=r"'tokens'.*grad"):
        encode_rows(TOKENS, torch.ones(2, requires_grad=True))


def test_big_endian_data_are_stored_little_endian() -> None:
    assert encode_rows(TOKENS, np.array([1, 258], ">u2")).tobytes() == b"\x01\x00\x02\x01"


def test_a_structured_array_may_have_another_layout() -> None:
    other = np.dtype([("b", ">i2"), ("a", ">i8")], align=True)
    data = np.zeros(3, other)
    data["a"], data["b"] = [1, 2, 3], [4, 5, 6]
    rows = encode_rows(ALIGNED, data)
    assert rows.dtype == ALIGNED.dtype
    assert (rows["a"].tolist(), rows["b"].tolist()) == ([1, 2, 3], [4, 5, 6])


def test_padding_is_zero_whatever_the_data_hold_there() -> None:
    data = np.frombuffer(b"\xff" * 32, ALIGNED.dtype)
    raw = encode_rows(ALIGNED, data).view(np.uint8).reshape(2, 16)
    assert not raw[:, 4:8].any()
    assert raw[:, :4].all()
    assert raw[:, 8:].all()


def test_sub_array_fields() -> None:
    rows = encode_rows(CONCEPTS, {"tokens": [7, 8], "concepts": [[1, 2], [3, 4]]})
    assert rows["concepts"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"'concepts' takes .* \(rows, 2\), not one of shape \(2, 3\)"):
        encode_rows(CONCEPTS, {"tokens": [7, 8], "concepts": [[1, 2, 3], [3, 4, 5]]})
    with pytest.raises(ValueError, match=r"2147483648 at position \(1, 0\)"):
        encode_rows(CONCEPTS, {"tokens": [7, 8], "concepts": [[1, 2], [2**31, 4]]})


@pytest.mark.parametrize("empty", [[], np.array([]), np.empty((0,), "i8")], ids=repr)
def test_no_rows(empty: Any) -> None:
    rows = encode_rows(CONCEPTS, {"tokens": empty, "concepts": empty})
    assert rows.shape == (0,)
    assert encode_rows(TOKENS, empty).shape == (0,)


def test_out_is_filled_in_place() -> None:
    out = np.full(5, 9, np.uint16).view(TOKENS.dtype)
    rows = encode_rows(TOKENS, [1, 2, 3], out=out)
    assert rows.base is out.base
    assert out["tokens"].tolist() == [1, 2, 3, 9, 9]
    with pytest.raises(ValueError, match="out has 5 rows"):
        encode_rows(TOKENS, range(6), out=out)
    with pytest.raises(ValueError, match="out has"):
        encode_rows(TOKENS, [1], out=np.zeros(5, "<u4").view([("tokens", "<u4")]))


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
def test_the_first_value_that_does_not_fit_is_named(make: Any) -> None:
    with pytest.raises(ValueError, match=r"'tokens': the value 65536 at position 2 does not fit uint16 \(0 to 65535\)"):
        check_rows(TOKENS, make([1, 65535, 65536, 100_000]))
    with pytest.raises(ValueError, match="the value -1 at position 0"):
        check_rows(TOKENS, make([-1]))
    with pytest.raises(ValueError, match=f"the value {2**70} at position 1"):
        check_rows(TOKENS, make([1, 2**70]))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("?", [0, 1, 2]), ("<i8", [0, 1, 2**63]), ("<u8", [0, 1, -1]), ("<u8", [2**63, 1, -1]), ("i1", [-128, 127, 128])],
)
def test_limits_of_other_dtypes(dtype: str, values: list[int]) -> None:
    with pytest.raises(ValueError, match=f"the value {values[2]} at position 2"):
        check_rows(Schema.of(dtype), values)
    assert encode_rows(Schema.of(dtype), values[:2])["tokens"].tolist() == values[:2]


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.sampled_from("<>"), st.data())
def test_integers_come_back_or_are_refused(source: str, target: str, order: str, data: st.DataObject) -> None:
    limits, reach = np.iinfo(source), np.iinfo(target)
    value = st.integers(limits.min, limits.max) | st.sampled_from([0, limits.min, limits.max])
    values = data.draw(st.lists(value, min_size=1, max_size=5))
    column = np.array(values, order + source)
    schema = Schema.of(target)
    bad = [position for position, value in enumerate(values) if not reach.min <= value <= reach.max]
    if bad:
        with pytest.raises(ValueError, match=f"the value {values[bad[0]]} at position {bad[0]} does not fit"):
            encode_rows(schema, column)
    else:
        assert encode_rows(schema, column)["tokens"].tolist() == values


@pytest.mark.parametrize(
    "column", [[1.0], np.array([1.0]), [1, 2.5], np.array([1j]), [None], ["a"], ["1"], [[1], [2, 3]]]
)
def test_integer_fields_take_integers_only(column: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="'tokens'"):
        check_rows(TOKENS, column)


def test_floats() -> None:
    halves, singles = Schema.of("<f2"), Schema.of("<f4")
    kept = encode_rows(singles, np.array([np.nan, np.inf, -np.inf, 0.1]))["tokens"]
    np.testing.assert_array_equal(kept, np.array([np.nan, np.inf, -np.inf, 0.1], "f4"))
    with pytest.raises(ValueError, match=r"1e\+39 at position 1 does not fit float32"):
        check_rows(singles, [0.0, 1e39])
    with pytest.raises(ValueError, match="70000"):
        check_rows(halves, [70000.0])
    assert encode_rows(halves, [1, 2048])["tokens"].tolist() == [1, 2048]
    with pytest.raises(ValueError, match="2049 at position 0 does not fit float16"):
        check_rows(halves, [2049])
    with pytest.raises(ValueError, match=str(2**53 + 1)):
        check_rows(Schema.of("<f8"), [2**53 + 1])
    with pytest.raises(TypeError, match="complex"):
        check_rows(singles, [1j])
    with pytest.raises(ValueError, match="complex64"):
        check_rows(Schema.of("<c8"), [1e39 + 0j])
    assert encode_rows(Schema.of("<c8"), [0.5])["tokens"].tolist() == [0.5 + 0j]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"tokens": [1]}, "'loss_mask' is missing"),
        ({"tokens": [1], "loss_maks": [1]}, "'loss_maks' is unknown; did you mean 'loss_mask'"),
        ({"tokens": [1], "loss_mask": [1], "weights": [1]}, "'weights' is unknown"),
        ({"tokens": [1], "loss_mask": [1], 3: [1]}, "3 is unknown"),
        ({}, "'tokens', 'loss_mask' is missing"),
        ({"tokens": [1, 2], "loss_mask": [1]}, "'loss_mask' has 1 rows, but 'tokens' has 2"),
        ({"tokens": 1, "loss_mask": 1}, r"takes an array of shape \(rows,\), not one of shape \(\)"),
        ({"tokens": [[1]], "loss_mask": [[1]]}, r"not one of shape \(1, 1\)"),
        (np.zeros(1, [("tokens", "<u2"), ("mask", "u1")]), "'mask' is unknown; did you mean 'loss_mask'"),
        (np.zeros((), PAIR.dtype), r"not one of shape \(\)"),
    ],
)
def test_wrong_rows_are_refused_with_the_reason(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rows(PAIR, data)


@pytest.mark.parametrize("data", [[1, 2], np.zeros(2, "<u2"), 5, None, [(1, 1)]], ids=repr)
def test_several_fields_need_names(data: Any) -> None:
    with pytest.raises(TypeError, match="mapping from field to array"):
        check_rows(PAIR, data)


def test_fitting_columns_are_not_copied() -> None:
    tokens, mask = np.arange(3, dtype="<u2"), np.ones(3, "u1")
    columns = check_rows(PAIR, {"loss_mask": mask, "tokens": tokens})
    assert columns[0] is tokens
    assert columns[1] is mask
