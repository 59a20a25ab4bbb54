"""What every backend must do, whatever it reads from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import strategies as st

from guideloom.backends import ReadBackend
from guideloom.errors import BackendError, MissingFileError, RangesError, ShortReadError
from guideloom.ranges import ByteRanges

FILES: dict[str, bytes] = {
    "empty.bin": b"",
    "one.bin": b"\x07",
    "folder/some name #1.bin": bytes(range(256)) * 3,
    "größe.bin": np.random.default_rng(1).bytes(70_001),
}
GUARD = 0xEE  # what lies around the places to fill


@st.composite
def range_lists(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Ranges of files that are there, whole or in part, empty ones and repeats included."""
    ranges = []
    for _ in range(draw(st.integers(0, 40))):
        path = draw(st.sampled_from(sorted(FILES)))
        offset = draw(st.integers(0, len(FILES[path])))
        ranges.append((path, offset, draw(st.integers(0, len(FILES[path]) - offset))))
    return ranges


async def check_reads(
    backend: ReadBackend, wanted: Sequence[tuple[str, int, int]], files: Mapping[str, bytes] = FILES
) -> None:
    """Read ranges into two buffers, in turn and apart from each other, and compare every byte of both."""
    ranges = ByteRanges.of(wanted)
    buffer = np.arange(len(wanted), dtype=np.int32) % 2
    position, ends = np.zeros(len(wanted), np.int64), [3, 3]
    for i, (_, _, length) in enumerate(wanted):
        position[i] = ends[i % 2]
        ends[i % 2] += length + 3
    buffers = [bytearray([GUARD]) * end for end in ends]
    expected = [bytearray(buffer) for buffer in buffers]
    for i, (path, offset, length) in enumerate(wanted):
        expected[i % 2][position[i] : position[i] + length] = files[path][offset : offset + length]
    ranges = ByteRanges(ranges.paths, ranges.file, ranges.offset, ranges.length, buffer, position)
    await backend.read_ranges(ranges, [memoryview(buffer) for buffer in buffers])
    assert buffers == expected


async def check_failures(backend: ReadBackend) -> None:
    """Ranges that cannot be read are named, each with its error; all others are valid."""
    wanted = [
        ("one.bin", 0, 1),
        ("missing.bin", 0, 4),
        ("größe.bin", 69_999, 10),
        ("größe.bin", 1, 70_000),
        ("one.bin", 500, 3),
        ("missing/there.bin", 8, 0),
        ("empty.bin", 0, 0),
    ]
    buffers = [bytearray(length) for _, _, length in wanted]
    with pytest.raises(RangesError) as caught:
        await backend.read_ranges(ByteRanges.of(wanted), [memoryview(buffer) for buffer in buffers])
    failures = caught.value.failures
    assert set(failures) - {5} == {1, 2, 4}  # whether an empty range of no file is an error is up to the backend
    assert isinstance(failures[1], MissingFileError)
    assert "missing.bin" in str(failures[1])
    for i, found in ((2, 2), (4, 0)):
        path, offset, length = wanted[i]
        assert isinstance(failures[i], ShortReadError)
        assert (failures[i].path, failures[i].offset, failures[i].length) == (path, offset, length)
        assert failures[i].found == found
        assert f"{found} of {length} bytes at offset {offset}" in str(failures[i])
    assert bytes(buffers[0]) == FILES["one.bin"]
    assert bytes(buffers[3]) == FILES["größe.bin"][1:]


async def check_whole_files(backend: ReadBackend) -> None:
    """`read_file` returns all of a file, and refuses one that is longer than it may be."""
    for path, data in FILES.items():
        found = await backend.read_file(path, max_bytes=len(data))
        assert isinstance(found, bytes)
        assert found == data
    for path, error in (("missing.bin", MissingFileError), ("größe.bin", BackendError)):
        with pytest.raises(error, match=path) as caught:
            await backend.read_file(path, max_bytes=70_000)
        assert caught.value.path == path
