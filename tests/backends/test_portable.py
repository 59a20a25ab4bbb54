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
from tests.backends.checks import FILES, check_failures, check_reads, check_whole_files, range_lists
from tests.streams import store


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(FILES, tmp_path_factory.mktemp("files"))


@settings(max_examples=15)  # each read is several hops
@given(range_lists())
def test_every_range_lands_in_its_place_and_nothing_beside_it(root: Path, wanted: list[tuple[str, int, int]]) -> None:
    asyncio.run(check_reads(PortableBackend(root), wanted))


def test_failed_ranges_are_named_and_the_others_are_valid(root: Path) -> None:
    asyncio.run(check_failures(PortableBackend(root)))


def test_whole_files(root: Path) -> None:
    asyncio.run(check_whole_files(PortableBackend(root)))


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
