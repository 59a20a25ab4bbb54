"""Hypothesis strategies: streams of any layout, and every way to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from guideloom._typing import AnyArray

# Nothing, one element, primes, and lengths on either side of a 4 KiB block of bytes.
SHARD_LENGTHS = st.sampled_from([0, 0, 1, 1, 2, 3, 5, 7, 13, 31, 127, 509, 1024, 2053])
ELEMENT_TYPES = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]
INTEGERS_AND_FLOATS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]


def element_types() -> st.SearchStrategy[np.dtype[Any]]:
    """Element types of either byte order."""
    return st.builds(
        lambda code, big: np.dtype(code).newbyteorder(">") if big else np.dtype(code),
        st.sampled_from(ELEMENT_TYPES),
        st.booleans(),
    )


@st.composite
def row_dtypes(draw: st.DrawFn) -> np.dtype[Any]:
    """Rows: plain, or of several fields, some of them sub-arrays; packed, aligned, or with bytes between and after."""
    if draw(st.booleans()):
        return draw(element_types())
    shapes = st.sampled_from([(), (), (), (2,), (4,), (2, 3)])
    count = draw(st.integers(1, 4))
    formats = [(draw(element_types()), draw(shapes)) for _ in range(count)]
    names = draw(st.permutations(["tokens", "loss_mask", "concepts", "größe"]))[:count]
    layout = draw(st.sampled_from(["packed", "aligned", "padded"]))
    if layout != "padded":
        fields = [(name, *form) for name, form in zip(names, formats, strict=True)]
        return np.dtype(fields, align=layout == "aligned")
    offsets, at = [], 0
    for dtype, shape in formats:
        at += draw(st.integers(0, 3))
        offsets.append(at)
        at += dtype.itemsize * int(np.prod(shape, dtype=int))
    size = at + draw(st.integers(0, 5))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def random_rows(dtype: np.dtype[Any], length: int, seed: int) -> AnyArray:
    """Return rows of any values: integers of the whole range, floats with infinities and signed zeros."""
    generator = np.random.default_rng(seed)
    rows = np.zeros(length, dtype)
    for name in dtype.names or (None,):
        column = rows if name is None else rows[name]
        if column.dtype.kind == "b":
            column[...] = generator.integers(0, 2, column.shape)
        elif column.dtype.kind in "iu":
            info = np.iinfo(column.dtype)
            column[...] = generator.integers(info.min, info.max, column.shape, info.dtype.newbyteorder("="), True)
        else:
            column[...] = generator.choice([0.0, -0.0, np.inf, -np.inf, 1.5, -3.25, 6e-5], column.shape)
    return rows


@dataclass(frozen=True)
class Stream:
    """A random stream: its rows, and where it is cut into shards."""

    rows: AnyArray
    lengths: list[int]


@st.composite
def streams(draw: st.DrawFn, dtypes: st.SearchStrategy[np.dtype[Any]] | None = None) -> Stream:
    """Streams of up to seven shards."""
    lengths = draw(st.lists(SHARD_LENGTHS, min_size=1, max_size=7))
    dtype = draw(row_dtypes() if dtypes is None else dtypes)
    return Stream(random_rows(dtype, sum(lengths), draw(st.integers(0, 2**32 - 1))), lengths)


@st.composite
def grids(draw: st.DrawFn, length: int) -> dict[str, Any]:
    """Window, stride and offset over so many elements: overlaps, gaps, windows longer than shards or the stream."""
    window = draw(st.one_of(st.integers(1, 24), st.integers(1, length + 2), st.sampled_from([256, 1024])))
    stride = draw(st.one_of(st.just(window), st.integers(1, window), st.integers(1, 2 * window + 1)))
    # A stride of one element over thousands would take the test's time and show nothing more.
    stride = max(stride, length // 200)
    offset = draw(st.one_of(st.just(0), st.integers(0, 7), st.integers(0, length + 1)))
    return {"window": window, "stride": stride, "offset": offset}


@st.composite
def selections(draw: st.DrawFn, dtype: np.dtype[Any]) -> Any:
    """Choices of fields: all, some in any order, some converted to a dtype that holds every value."""
    names = list(dtype.names or ("tokens",))
    chosen = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    how = draw(st.sampled_from(["all", "some", "converted"]))
    if how == "all":
        return None
    if how == "some":
        return chosen
    wanted: dict[str, Any] = {}
    for name in chosen:
        stored = (dtype if dtype.names is None else dtype[name].base).newbyteorder("=")
        wider = [
            code for code in INTEGERS_AND_FLOATS if stored.kind in "biuf" and np.can_cast(stored, code, "same_kind")
        ]
        wider = [code for code in wider if stored.kind == "f" or code[0] == "f" or np.can_cast(stored, code, "safe")]
        convertible = stored.kind == "b" or stored.str[1:] in INTEGERS_AND_FLOATS
        wanted[name] = draw(st.sampled_from([None, *wider])) if convertible else None
    return wanted


def deals() -> st.SearchStrategy[dict[str, Any]]:
    """Ways to deal an epoch out: world size, batch size, and what becomes of the tail."""
    return st.fixed_dictionaries(
        {"world_size": st.integers(1, 5), "batch_size": st.integers(1, 9), "drop_last": st.booleans()}
    )


def prefetches() -> st.SearchStrategy[int | None]:
    """Depths of look-ahead."""
    return st.sampled_from([None, 0, 1, 2, 3, 8, 64, 1000])
