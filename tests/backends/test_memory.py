"""Files in memory."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given

from guideloom.backends import HasSizes, MemoryBackend, ReadBackend
from guideloom.errors import MissingFileError
from guideloom.ranges import ByteRanges
from guideloom.testing import CHECKS, FILES
from guideloom.testing.conformance import Check, check_reads
from tests.backends.checks import range_lists


@given(range_lists())
def test_every_range_lands_in_its_place_and_nothing_beside_it(wanted: list[tuple[str, int, int]]) -> None:
    asyncio.run(check_reads(MemoryBackend(FILES), wanted))


@pytest.mark.parametrize("check", CHECKS)
def test_conformance(check: Check) -> None:
    asyncio.run(check(lambda: MemoryBackend(FILES)))


def test_sizes() -> None:
    async def main() -> None:
        backend = MemoryBackend(FILES)
        assert isinstance(backend, ReadBackend)
        assert isinstance(backend, HasSizes)
        assert [await backend.size(path) for path in FILES] == [len(data) for data in FILES.values()]
        with pytest.raises(MissingFileError, match=r"missing\.bin"):
            await backend.size("missing.bin")

    asyncio.run(main())


def test_any_kind_of_buffer_will_do_and_changes_show() -> None:
    async def main() -> None:
        for data in (bytes(range(10)), bytearray(range(10)), memoryview(bytes(range(10)))):
            buffer = bytearray(4)
            await MemoryBackend({"a": data}).read_ranges(ByteRanges.of([("a", 3, 4)]), [memoryview(buffer)])
            assert buffer == bytes([3, 4, 5, 6])
        items = np.arange(20, dtype="<u2").data  # of two bytes each: ranges are of bytes all the same
        backend = MemoryBackend({"a": items, "empty": items[:0]})
        assert [await backend.size(path) for path in ("a", "empty")] == [40, 0]
        buffer = bytearray(4)
        await backend.read_ranges(ByteRanges.of([("a", 36, 4)]), [memoryview(buffer)])
        assert buffer == bytes([18, 0, 19, 0])
        files = {"a": bytearray(b"old")}
        backend = MemoryBackend(files)
        files["a"][:] = b"new"
        assert await backend.read_file("a", max_bytes=3) == b"new"

    asyncio.run(main())
