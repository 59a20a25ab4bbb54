"""Each answer is what was asked for, or an error: whatever a server sends, no wrong byte arrives."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest

from guideloom.backends import HTTPBackend
from guideloom.errors import (
    AccessError,
    BackendError,
    DisconnectedError,
    FileChangedError,
    MissingFileError,
    RangeNotSupportedError,
    ReadTimeoutError,
    ResponseError,
)
from tests.http.misbehaving import Answer, MisbehavingServer, Request, proper
from tests.http.reading import DATA, FILES, WHOLE, failure, read, run
from tests.http.servers import Nginx

RANGE = ("a.bin", 100, 50)


def with_headers(**headers: str) -> Any:
    """Answer properly, but for some headers; those that are empty are left out."""

    def act(request: Request) -> Answer:
        answer = proper(FILES, request, preconditions=False)
        return replace(answer, headers={**answer.headers, **{k.replace("_", "-"): v for k, v in headers.items()}})

    return act


def test_a_request_asks_for_the_range_uncompressed() -> None:
    """R5."""
    with MisbehavingServer(FILES) as server:
        assert run(HTTPBackend(server.url), read, RANGE) == [DATA[100:150]]
        (request,) = server.requests
    assert request.headers["range"] == "bytes=100-149"
    assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Content_Range": ""}, RangeNotSupportedError),
        ({"Content_Range": "bytes 0-49/65536"}, RangeNotSupportedError),
        ({"Content_Range": "bytes 100-150/65536"}, RangeNotSupportedError),
        ({"Content_Range": "bytes 100-148/65536"}, RangeNotSupportedError),
        ({"Content_Range": "bytes 100-149/120"}, RangeNotSupportedError),
        ({"Content_Range": "bytes 149-100/65536"}, RangeNotSupportedError),
        ({"Content_Range": "items 100-149/65536"}, RangeNotSupportedError),
        ({"Content_Range": f"bytes 100-149/{10**30}"}, RangeNotSupportedError),
        ({"Content_Encoding": "gzip"}, RangeNotSupportedError),
        ({"Content_Range": "", "Content_Type": "multipart/byteranges; boundary=x"}, RangeNotSupportedError),
    ],
)
def test_a_206_with_other_bytes_than_asked_for_is_refused(headers: dict[str, str], error: type[BackendError]) -> None:
    """R4, C64: the range is named, and nothing is retried for it."""
    with MisbehavingServer(FILES, with_headers(**headers)) as server:
        found = run(HTTPBackend(server.url), failure, RANGE)
        assert isinstance(found, error)
        assert found.transient is False
        assert "a.bin" in str(found)


@pytest.mark.parametrize("size", [10_000, 3 * 2**20])
def test_a_whole_file_for_a_range_is_cut_out_if_small_and_refused_otherwise(size: int) -> None:
    """C61, C62: never bytes 0 .. 49 in place of 100 .. 149; and little is read of a large file."""
    files = {"a.bin": (DATA * 50)[:size]}

    def act(request: Request) -> Answer:
        return proper(files, replace(request, headers={}))

    with MisbehavingServer(files, act) as server:
        backend = HTTPBackend(server.url)
        if size < 2**20:
            assert run(backend, read, RANGE, ("a.bin", 9_990, 10)) == [DATA[100:150], files["a.bin"][9_990:]]
            short = run(backend, failure, ("a.bin", 9_990, 11))
            assert (type(short).__name__, short.found) == ("ShortReadError", 10)
        else:
            assert type(run(backend, failure, RANGE)) is RangeNotSupportedError


def test_nginx_without_ranges(nginx: Nginx) -> None:
    backend = HTTPBackend(nginx.url("no-ranges"))
    assert len(run(backend, read, ("größe.bin", 5, 60_000))[0]) == 60_000
    assert type(run(backend, failure, ("big.bin", 5, 10))) is RangeNotSupportedError


@pytest.mark.parametrize("announced", [True, False])
def test_a_flood_is_cut_off(announced: bool) -> None:
    """R4, M13: 20 MB for 50 bytes."""
    body = b"x" * 20_000_000

    def act(request: Request) -> Answer:
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        headers = {"Content-Range": "bytes 100-149/65536"}
        return (
            Answer(206, headers, body)
            if announced
            else Answer(206, {**headers, "Transfer-Encoding": "chunked"}, chunked)
        )

    with MisbehavingServer(FILES, act) as server:
        assert isinstance(run(HTTPBackend(server.url), failure, RANGE), ResponseError)


def test_chunked_answers_are_read() -> None:
    def act(request: Request) -> Answer:
        answer = proper(FILES, request)
        cut = len(answer.body) // 3
        parts = (answer.body[:cut], answer.body[cut:])
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        return replace(answer, headers={**answer.headers, "Transfer-Encoding": "chunked"}, body=body)

    with MisbehavingServer(FILES, act) as server:
        assert run(HTTPBackend(server.url), read, RANGE, WHOLE) == [DATA[100:150], DATA]
        assert server.most_connections <= 2


@pytest.mark.parametrize("status", [400, 403, 404, 410, 401, 405, 501, 505])
def test_refusals_are_final_and_typed(status: int) -> None:
    """T1."""
    with MisbehavingServer(FILES, lambda request: Answer(status, body=b"go away")) as server:
        found = run(HTTPBackend(server.url), failure, RANGE)
    kinds = {401: AccessError, 403: AccessError, 404: MissingFileError, 410: MissingFileError}
    assert type(found) is kinds.get(status, ResponseError)
    assert (found.transient, found.status, found.path) == (False, status, "a.bin")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_troubles_of_the_server_are_transient(status: int) -> None:
    """T1."""
    with MisbehavingServer(FILES, lambda request: Answer(status, {"Retry-After": "7"})) as server:
        found = run(HTTPBackend(server.url), failure, RANGE)
    assert (type(found), found.transient, found.retry_after) == (ResponseError, True, 7)


def test_a_body_that_breaks_says_what_is_in_place() -> None:
    """C65: 4000 of 4096 bytes."""
    with MisbehavingServer(FILES, lambda request: replace(proper(FILES, request), sent=4000, then="close")) as server:
        found = run(HTTPBackend(server.url), failure, ("a.bin", 0, 4096))
    assert isinstance(found, DisconnectedError)
    assert found.transient
    assert found.received <= 4000  # what aiohttp had handed over before it noticed


@pytest.mark.parametrize("sent", [None, 10_000])
def test_silence_is_noticed(sent: int | None) -> None:
    """T7, C69: before the headers, and in the middle."""

    def act(request: Request) -> Answer:
        if sent is None:
            return Answer(206, delay=60)
        return replace(proper(FILES, request), sent=sent, then="stall")

    with MisbehavingServer(FILES, act) as server:
        found = run(HTTPBackend(server.url, stall_seconds=0.3), failure, WHOLE)
    assert isinstance(found, ReadTimeoutError)
    assert found.transient
    assert "0.3 s" in str(found)
    assert "a.bin" in str(found)
    assert found.received == (sent or 0)


def test_a_request_has_a_deadline() -> None:
    """M13: a byte now and then does not keep a request alive."""
    with MisbehavingServer(FILES, lambda request: Answer(206, delay=60)) as server:
        found = run(HTTPBackend(server.url, request_seconds=0.3), failure, RANGE)
    assert isinstance(found, ReadTimeoutError)


def test_nobody_listens() -> None:
    with MisbehavingServer(FILES) as server:
        url = server.url
    found = run(HTTPBackend(url), failure, RANGE)
    assert isinstance(found, DisconnectedError)
    assert (found.transient, found.reached) == (True, False)


def test_an_unknown_host_is_final() -> None:
    found = run(HTTPBackend("http://no-such-host.invalid/x"), failure, RANGE)
    assert isinstance(found, DisconnectedError)


class TestVersions:
    """R1, R2, C73: all ranges of a file come from one version."""

    @pytest.mark.parametrize("preconditions", [True, False])
    def test_a_file_that_is_replaced_is_an_error(self, preconditions: bool) -> None:
        files = dict(FILES)

        async def main(backend: HTTPBackend) -> Any:
            assert await read(backend, RANGE) == [DATA[100:150]]
            files["a.bin"] = DATA[::-1]
            assert await read(backend, ("b.bin", 0, 4)) == [DATA[::-1][:4]]
            return await failure(backend, RANGE)

        act = lambda request: proper(files, request, preconditions=preconditions)  # noqa: E731
        with MisbehavingServer(files, act) as server:
            found = run(HTTPBackend(server.url), main)
            assert server.requests[-1].headers["if-match"]
        assert isinstance(found, FileChangedError)
        assert not isinstance(found, ResponseError)
        assert "a.bin" in str(found)
        assert found.expected != found.found

    @pytest.mark.parametrize(
        ("before", "after", "changed"),
        [
            ({"ETag": 'W/"1"'}, {"ETag": 'W/"2"'}, True),
            ({"ETag": 'W/"1"', "Last_Modified": "x"}, {"ETag": 'W/"1"', "Last_Modified": "y"}, True),
            ({"ETag": "", "Last_Modified": "x"}, {"ETag": "", "Last_Modified": "y"}, True),
            ({"ETag": '"1"'}, {"ETag": ""}, True),
            ({"ETag": '"1"', "Last_Modified": "x"}, {"ETag": '"1"', "Last_Modified": "y"}, False),
            ({"ETag": ""}, {"ETag": ""}, False),
        ],
    )
    def test_whatever_the_server_tells_is_compared(
        self, before: dict[str, str], after: dict[str, str], changed: bool
    ) -> None:
        async def main(backend: HTTPBackend) -> None:
            await read(backend, RANGE)
            server.act = with_headers(**after)
            if changed:
                assert isinstance(await failure(backend, RANGE), FileChangedError)
            else:
                assert await read(backend, RANGE) == [DATA[100:150]]

        with MisbehavingServer(FILES, with_headers(**before)) as server:
            run(HTTPBackend(server.url), main)
            weak = not before["ETag"].startswith('"')
            assert ("if-match" in server.requests[-1].headers) is not weak

    def test_the_size_is_compared_too(self) -> None:
        async def main(backend: HTTPBackend) -> None:
            await read(backend, RANGE)
            server.act = with_headers(Content_Range="bytes 100-149/65535")
            assert isinstance(await failure(backend, RANGE), FileChangedError)

        with MisbehavingServer(FILES) as server:
            run(HTTPBackend(server.url), main)


class TestWholeFiles:
    async def read_file(self, backend: HTTPBackend, max_bytes: int) -> bytes:
        return await backend.read_file("a.bin", max_bytes=max_bytes)

    def test_a_gzip_bomb_is_not_unpacked(self) -> None:
        """M5: 1 MB that would become 1 GB."""
        bomb = gzip.compress(bytes(10_000_000))

        answer = Answer(200, {"Content-Encoding": "gzip"}, bomb)
        with (
            MisbehavingServer({}, lambda request: answer) as server,
            pytest.raises(RangeNotSupportedError, match="encoded"),
        ):
            run(HTTPBackend(server.url), self.read_file, 2**30)

    @pytest.mark.parametrize("chunked", [True, False])
    def test_the_bound_holds_while_it_streams(self, chunked: bool) -> None:
        body = b"x" * 5_000_000
        answer = Answer(200, {}, body)
        if chunked:
            answer = Answer(200, {"Transfer-Encoding": "chunked"}, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        with MisbehavingServer({}, lambda request: answer) as server:
            backend = HTTPBackend(server.url)
            with pytest.raises(BackendError, match="larger than 1000 bytes"):
                run(backend, self.read_file, 1000)

    def test_a_cut_one_is_an_error(self) -> None:
        cut = replace(proper(FILES, Request("/a.bin", {})), sent=9, then="close")
        with MisbehavingServer(FILES, lambda request: cut) as server, pytest.raises(DisconnectedError):
            run(HTTPBackend(server.url), self.read_file, 2**20)

    def test_sizes_need_no_head(self) -> None:
        """C63."""

        async def size(backend: HTTPBackend) -> int:
            return await backend.size("a.bin")

        with MisbehavingServer(FILES) as server:
            assert run(HTTPBackend(server.url), size) == len(DATA)
            assert server.requests[0].headers["range"] == "bytes=0-0"
