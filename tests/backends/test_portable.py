"""Local files through aiofiles, where there is no `preadv`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings

from guideloom import backends
from guideloom.backends import HasSizes, ReadBackend, from_url
from guideloom.backends.portable import PortableBackend
from guideloom.errors import MissingFileError
from guideloom.testing import CHECKS, FILES, write_files
from guideloom.testing.conformance import Check, check_large_file, check_reads
from tests.backends.checks import range_lists


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"), large=True)


@settings(max_examples=15)  # each read is several hops
@given(range_lists())
def test_every_range_lands_in_its_place_and_nothing_beside_it(root: Path, wanted: list[tuple[str, int, int]]) -> None:
    asyncio.run(check_reads(PortableBackend(root), wanted))


@pytest.mark.parametrize("check", [*CHECKS, check_large_file])
def test_conformance(root: Path, check: Check) -> None:
    asyncio.run(check(lambda: PortableBackend(root)))


def test_sizes(root: Path) -> None:
    async def main() -> None:
        backend = PortableBackend(root)
        assert isinstance(backend, ReadBackend)
        assert isinstance(backend, HasSizes)
        assert [await backend.size(path) for path in FILES] == [len(data) for data in FILES.values()]
        with pytest.raises(MissingFileError, match=r"missing\.bin"):
            await backend.size("missing.bin")

    asyncio.run(main())


def test_it_is_taken_where_preadv_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HAVE_PREADV", False)
    backend = from_url(root)
    assert isinstance(backend, PortableBackend)
    assert backend.root == str(root)
