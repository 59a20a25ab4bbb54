"""Ranges for the property tests of every backend."""

from __future__ import annotations

from hypothesis import strategies as st

from guideloom.testing import FILES

SMALL_FILES = {name: FILES[name] for name in ("empty.bin", "one.bin", "folder/some name #1.bin", "größe.bin")}


@st.composite
def range_lists(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Ranges of files that are there, whole or in part, empty ones and repeats included."""
    ranges = []
    for _ in range(draw(st.integers(0, 40))):
        path = draw(st.sampled_from(sorted(SMALL_FILES)))
        offset = draw(st.integers(0, len(FILES[path])))
        ranges.append((path, offset, draw(st.integers(0, len(FILES[path]) - offset))))
    return ranges
