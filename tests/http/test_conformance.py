"""The suite of every backend, over real servers."""

from __future__ import annotations

import asyncio

import pytest

from guideloom.backends import (
    CoalescingBackend,
    HTTPBackend,
    MemoryBackend,
    MeteredBackend,
    ReadBackend,
    RetryingBackend,
    from_url,
)
from guideloom.testing import CHECKS, FILES
from guideloom.testing.conformance import Check, check_large_file
from tests.http.misbehaving import MisbehavingServer
from tests.http.servers import Nginx

ALL_CHECKS = [*CHECKS, check_large_file]


@pytest.mark.parametrize("check", ALL_CHECKS)
def test_nginx(nginx: Nginx, check: Check) -> None:
    asyncio.run(check(lambda: HTTPBackend(nginx.url())))


@pytest.mark.parametrize("check", ALL_CHECKS)
def test_nginx_by_tls(nginx: Nginx, check: Check) -> None:
    asyncio.run(check(lambda: HTTPBackend(nginx.tls_url, ca_file=nginx.ca_file)))


@pytest.mark.parametrize("check", CHECKS)
def test_nginx_with_gzip(nginx: Nginx, check: Check) -> None:
    asyncio.run(check(lambda: HTTPBackend(nginx.url("gzip"))))


@pytest.mark.parametrize("check", ALL_CHECKS)
def test_lighttpd(lighttpd_url: str, check: Check) -> None:
    asyncio.run(check(lambda: HTTPBackend(lighttpd_url)))


@pytest.mark.parametrize("check", CHECKS)
def test_a_server_of_our_own(check: Check) -> None:
    with MisbehavingServer(FILES) as server:
        asyncio.run(check(lambda: HTTPBackend(server.url)))


@pytest.mark.parametrize("check", ALL_CHECKS)
def test_what_a_url_gives(nginx: Nginx, check: Check) -> None:
    asyncio.run(check(lambda: from_url(nginx.url())))


@pytest.mark.parametrize("wrapper", [CoalescingBackend, RetryingBackend, MeteredBackend])
@pytest.mark.parametrize("check", CHECKS)
def test_wrappers_over_memory(check: Check, wrapper: type[CoalescingBackend]) -> None:
    asyncio.run(check(lambda: wrapper(MemoryBackend(FILES))))


@pytest.mark.parametrize("wrapper", [CoalescingBackend, RetryingBackend, MeteredBackend])
@pytest.mark.parametrize("check", CHECKS)
def test_wrappers_over_http(nginx: Nginx, check: Check, wrapper: type[CoalescingBackend]) -> None:
    def make() -> ReadBackend:
        return wrapper(HTTPBackend(nginx.url()))

    asyncio.run(check(make))
