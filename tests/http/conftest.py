"""Servers over the files of the conformance suite, started once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guideloom.testing import write_files
from tests.http.servers import Nginx, lighttpd
from tests.leaks import no_leaks as no_leaks


@pytest.fixture(scope="session")
def files_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("www"), large=True)


@pytest.fixture(scope="session")
def nginx(files_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with Nginx(files_root, tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture(scope="session")
def lighttpd_url(files_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with lighttpd(files_root, tmp_path_factory.mktemp("lighttpd")) as url:
        yield url
