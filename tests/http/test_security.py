"""Redirects within a policy, credentials where they belong, TLS always verified, secrets nowhere."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import pickle
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

import guideloom as gl
from guideloom.backends import HTTPBackend, RetryingBackend, Signed, from_url, resolver
from guideloom.backends.resolver import GuardedResolver
from guideloom.errors import AccessError, ReadError, ReadTimeoutError, UnsafeURLError
from tests.http.misbehaving import Answer, MisbehavingServer, Request, proper
from tests.http.reading import DATA, FILES, QUICK, failure, read, run
from tests.http.servers import Nginx

RANGE = ("a.bin", 100, 50)


def redirect(location: str, status: int = 302) -> Any:
    return lambda request: None if request.target.endswith("?there") else Answer(status, {"Location": location})


class TestRedirects:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_within_a_server_they_are_followed_with_all_headers(self, status: int) -> None:
        with MisbehavingServer(FILES, redirect("/a.bin?there", status)) as server:
            backend = HTTPBackend(server.url, headers={"X-Api-Key": "canary"})
            assert run(backend, read, RANGE) == [DATA[100:150]]
            assert all(request.headers["x-api-key"] == "canary" for request in server.requests)
            assert server.requests[1].headers["range"] == "bytes=100-149"

    def test_to_another_origin_only_if_allowed_and_without_any_header_of_the_caller(self) -> None:
        """M7: the X-Api-Key case, cookies, and what a user in the address became."""
        with MisbehavingServer(FILES) as other, MisbehavingServer(FILES) as server:
            server.act = lambda request: Answer(302, {"Location": f"{other.url}/a.bin", "Set-Cookie": "session=canary"})
            url = server.url.replace("http://", "http://name:canary@")
            headers = {"X-Api-Key": "canary", "Cookie": "a=canary"}
            assert isinstance(run(HTTPBackend(url, headers=headers), failure, RANGE), UnsafeURLError)
            assert not other.requests
            for allowed in (other.url, "*"):
                backend = HTTPBackend(url, headers=headers, redirect_origins=[allowed])
                assert run(backend, read, RANGE) == [DATA[100:150]]
            assert len(other.requests) == 2
            for request in other.requests:
                assert "canary" not in str(request.headers)
                assert request.headers["range"] == "bytes=100-149"

    @pytest.mark.parametrize(
        "location",
        [
            "file:///etc/passwd",
            "ftp://host/x",
            "//127.0.0.2:1/x",
            "http://127.0.0.2:1/",
            "http://169.254.169.254/x",
            "",
        ],
    )
    def test_elsewhere_they_are_refused(self, location: str) -> None:
        """M6."""
        with MisbehavingServer(FILES, redirect(location)) as server:
            found = run(HTTPBackend(server.url), failure, RANGE)
            assert isinstance(found, UnsafeURLError)
            assert "a.bin" in str(found)
            assert len(server.requests) <= 6  # an empty one leads to itself

    def test_a_loop_ends(self) -> None:
        with MisbehavingServer(FILES, lambda request: Answer(302, {"Location": request.target})) as server:
            found = run(HTTPBackend(server.url, max_redirects=3), failure, RANGE)
            assert isinstance(found, UnsafeURLError)
            assert len(server.requests) == 4

    def test_never_from_https_to_http(self, nginx: Nginx) -> None:
        url = nginx.tls_url.replace("/plain", "/down")
        backend = HTTPBackend(url, ca_file=nginx.ca_file, redirect_origins="*")
        assert "give up encryption" in str(run(backend, failure, ("one.bin", 0, 1)))

    def test_a_public_server_must_not_lead_to_an_inner_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """M6: a redirect, or a second answer of the name server."""
        answers = {"data.example": "8.8.8.8", "inner.example": "10.0.0.1"}

        def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[host], port))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

        async def main() -> None:
            public = GuardedResolver("data.example")
            assert (await public.resolve("data.example", 80))[0]["host"] == "8.8.8.8"
            with pytest.raises(UnsafeURLError, match=r"10\.0\.0\.1"):
                await public.resolve("inner.example", 80)
            answers["data.example"] = "127.0.0.1"
            with pytest.raises(UnsafeURLError):
                await public.resolve("data.example", 80)
            with pytest.raises(UnsafeURLError):
                public.check("169.254.169.254")
            await public.close()
            inner = GuardedResolver("inner.example")  # of a caller who is in there
            await inner.resolve("inner.example", 80)
            inner.check("127.0.0.1")
            await inner.close()

        asyncio.run(main())


def test_a_look_up_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """T7."""
    release = threading.Event()

    def hang(*_: Any, **__: Any) -> list[Any]:
        release.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(resolver, "LOOK_UP_SECONDS", 0.2)
    begin = time.monotonic()
    found = run(HTTPBackend("http://slow.example/"), failure, RANGE)
    release.set()
    assert found.transient
    assert time.monotonic() - begin < 5


class TestSigning:
    """C72: addresses that expire."""

    @contextmanager
    def server(self) -> Iterator[MisbehavingServer]:
        self.valid, self.calls = "0", 0

        def act(request: Request) -> Answer | None:
            return None if request.target.endswith(f"?sig={self.valid}") else Answer(403)

        with MisbehavingServer(FILES, act) as server:
            yield server

    def sign(self, url: str) -> str:
        self.calls += 1
        return f"{url}?sig={self.valid}"

    def test_once_a_file_and_once_an_expiry(self) -> None:
        with self.server() as server:

            async def main(backend: HTTPBackend) -> None:
                wanted = [("a.bin", i, 10) for i in range(16)]
                for valid in ("0", "1", "2"):
                    self.valid = valid
                    assert await read(backend, *wanted) == [DATA[i : i + 10] for i in range(16)]
                assert self.calls == 3

            run(HTTPBackend(server.url, sign=self.sign, max_concurrency=16), main)

    def test_one_that_stays_expired_is_an_error_soon_and_without_its_signature(self) -> None:
        with self.server() as server:

            async def sign(url: str) -> str:
                self.calls += 1
                return f"{url}?sig=S3CRET"

            found = run(RetryingBackend(HTTPBackend(server.url, sign=sign), QUICK), failure, RANGE)
            assert isinstance(found, AccessError)
            assert "S3CRET" not in str(found)
            assert (self.calls, len(server.requests)) == (2, 2)

    def test_headers_of_a_signer(self) -> None:
        tokens = iter(["old", "new"])

        def sign(url: str) -> Signed:
            return Signed(url, {"Authorization": f"Bearer {next(tokens)}"})

        def act(request: Request) -> Answer | None:
            return None if request.headers.get("authorization") == "Bearer new" else Answer(401)

        with MisbehavingServer(FILES, act) as server:
            assert run(HTTPBackend(server.url, sign=sign), read, RANGE) == [DATA[100:150]]
        assert "S3CRET" not in repr(Signed("http://h/x?sig=S3CRET", {"A": "S3CRET"}))

    def test_what_a_signer_raises_is_the_error_of_its_range(self) -> None:
        def sign(url: str) -> str:
            raise LookupError("no key")

        assert isinstance(run(HTTPBackend("http://127.0.0.1:9/", sign=sign), failure, RANGE), LookupError)


def test_a_user_in_the_address_is_basic_authorization() -> None:
    with MisbehavingServer(FILES) as server:
        url = server.url.replace("http://", "http://us%40er:p%3Ass@")
        assert run(HTTPBackend(url), read, RANGE) == [DATA[100:150]]
        assert server.requests[0].headers["authorization"] == "Basic dXNAZXI6cDpzcw=="
        assert "@" not in server.requests[0].headers["host"]


def test_proxies_of_the_environment_are_used_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with MisbehavingServer(FILES, lambda request: Answer(502)) as proxy, MisbehavingServer(FILES) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert run(HTTPBackend(server.url), read, RANGE) == [DATA[100:150]]
        assert not proxy.requests
        assert run(HTTPBackend(server.url, trust_env=True), failure, RANGE).status == 502
        assert proxy.requests[0].target == f"{server.url}/a.bin"


class TestTLS:
    """M12: always verified, not retried, and no variable turns it off."""

    @contextmanager
    def listening(self, tmp_path: Path, certificate: trustme.LeafCert) -> Iterator[str]:
        """Serve handshakes alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(connection, server_side=True) as wrapped:
                        wrapped.recv(1)
                except OSError:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)

    @pytest.mark.parametrize("kind", ["self-made", "expired", "another host"])
    def test_bad_certificates(self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONHTTPSVERIFY", "0")
        authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(ca_file)
        host = "elsewhere.example" if kind == "another host" else "127.0.0.1"
        past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        certificate = authority.issue_cert(host, not_after=past if kind == "expired" else None)
        trusted = None if kind == "self-made" else ca_file
        with self.listening(tmp_path, certificate) as url:
            found = run(RetryingBackend(HTTPBackend(url, ca_file=trusted), QUICK), failure, RANGE)
        assert type(found) is ReadError
        assert found.transient is False
        assert "cannot be trusted" in str(found)

    def test_a_server_that_does_not_speak_it(self, nginx: Nginx) -> None:
        found = run(HTTPBackend(nginx.url().replace("http", "https")), failure, RANGE)
        assert type(found) is ReadError


class TestSecrets:
    """M8, P5: canaries in user, password, query, header and signature, through every kind of failure."""

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(404),
            Answer(403),
            Answer(500),
            Answer(412),
            Answer(200, {}, bytes(2**21)),
            Answer(206, {"Content-Range": "bytes 0-1/2"}, b"ab"),
            Answer(206, sent=0, then="reset"),
            Answer(302, {"Location": "http://S3CRET:S3CRET@127.0.0.2:1/x?a=S3CRET"}),
            Answer(302, {"Location": "http://127.0.0.1:99999/S3CRET?a=S3CRET"}),
            Answer(206, delay=30),
            Answer(206, {"Content-Encoding": "gzip"}, b"ab"),
        ],
        ids=lambda answer: f"{answer.status}-{answer.then}-{answer.delay}",
    )
    def test_no_error_shows_one(self, answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        with MisbehavingServer(FILES, lambda request: answer) as server:
            address = f"http://S3CRET:S3CRET@127.0.0.1:{server.port}/?sig=S3CRET"
            backend = RetryingBackend(
                HTTPBackend(
                    address,
                    headers={"X-Api-Key": "S3CRET"},
                    sign=lambda url: Signed(f"{url}&again=S3CRET", {"Authorization": "S3CRET"}),
                    stall_seconds=0.2,
                ),
                gl.backends.RetryPolicy(max_retries=1, first_delay_seconds=0),
            )
            found = run(backend, failure, ("a.bin", 0, 50))
        error: BaseException | None = found
        seen = 0
        while error is not None:
            assert "S3CRET" not in "".join(traceback.format_exception(error))
            assert "S3CRET" not in repr(getattr(error, "details", ""))
            assert "S3CRET" not in repr(error) + repr(vars(error))
            error, seen = error.__cause__ or error.__context__, seen + 1
        assert pickle.loads(pickle.dumps(found)).args == found.args
        assert "S3CRET" not in caplog.text
        assert "S3CRET" not in repr(backend)

    def test_connections_that_time_out_do_not_show_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as full:  # accepts nothing once its queue is full
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            found = run(HTTPBackend(f"http://127.0.0.1:{port}/?sig=S3CRET", connect_seconds=0.3), failure, RANGE)
            for filler in fillers:
                filler.close()
        assert isinstance(found, ReadTimeoutError)
        assert "S3CRET" not in "".join(traceback.format_exception(found))
        assert found.__context__ is None

    def test_pickles_hold_none(self) -> None:
        for backend in (
            HTTPBackend("http://host/?sig=S3CRET"),
            HTTPBackend("http://name:S3CRET@host/"),
            HTTPBackend("http://host/", headers={"X-Api-Key": "S3CRET"}),
        ):
            with pytest.raises(TypeError, match="secret") as caught:
                pickle.dumps(backend)
            assert "S3CRET" not in str(caught.value)
        backend = HTTPBackend("http://host/x", sign=os.path.basename, max_concurrency=3, redirect_origins=["*"])
        data = pickle.dumps(from_url("http://host/x", sign=os.path.basename))
        assert len(data) < 4096
        copy = pickle.loads(pickle.dumps(backend))
        assert repr(copy) == repr(backend)
        assert copy.__getstate__() == backend.__getstate__()

    def test_a_dataset_shows_none(self) -> None:
        with MisbehavingServer({}) as server:
            address = f"http://S3CRET:S3CRET@127.0.0.1:{server.port}/corpus?sig=S3CRET"
            with pytest.raises(gl.errors.MissingFileError, match="there is no dataset") as caught:
                gl.open_dataset(address, window=4)
        assert "S3CRET" not in "".join(traceback.format_exception(caught.value))


def test_requests_under_way_are_bounded() -> None:
    """B3."""
    with MisbehavingServer(FILES, lambda request: Answer(**{**vars(proper(FILES, request)), "delay": 0.002})) as server:
        wanted = [("a.bin", i, 10) for i in range(200)]

        async def main(backend: HTTPBackend) -> None:
            for found in await asyncio.gather(*(read(backend, *wanted) for _ in range(4))):
                assert found == [DATA[i : i + 10] for i in range(200)]

        run(HTTPBackend(server.url, max_concurrency=5), main)
        assert server.most_connections <= 5
