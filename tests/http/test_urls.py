"""Addresses: names that want quoting, queries byte for byte, and nothing secret in what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.backends import HTTPBackend
from guideloom.backends.urls import URL, is_public, redact
from guideloom.errors import UnsafeURLError
from tests.http.misbehaving import Answer, MisbehavingServer, Request
from tests.http.reading import read, run

NAMES = {
    "data/c#/s 1.bin": "data/c%23/s%201.bin",
    "größe%20.bin": "gr%C3%B6%C3%9Fe%2520.bin",
    "データ.bin": "%E3%83%87%E3%83%BC%E3%82%BF.bin",
    "a?b.bin": "a%3Fb.bin",
    "a+b&c=d;e.bin": "a%2Bb%26c%3Dd%3Be.bin",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_quoted_once(name: str) -> None:
    """C71."""
    with MisbehavingServer({f"data/{name}": b"12345"}) as server:
        assert run(HTTPBackend(f"{server.url}/data/"), read, (name, 1, 3)) == [b"234"]
        assert [request.target for request in server.requests] == [f"/data/{NAMES[name]}"]


@pytest.mark.parametrize(
    "query",
    [
        "type=application%2Fgzip&sig=abc%2Bd%3D",
        "a=%28%27%40%29",
        "a=b+c%20d",
        "sig=a/b?c:d@e",
        "x=1&x=2&empty=&bare",
    ],
)
def test_a_query_is_sent_byte_for_byte(query: str) -> None:
    """C70: with every file."""

    def act(request: Request) -> Answer | None:
        return None if request.target.endswith(f"?{query}") else Answer(403)

    with MisbehavingServer({"a/b/x.bin": b"12345"}, act) as server:
        assert run(HTTPBackend(f"{server.url}/a/b?{query}"), read, ("x.bin", 1, 3)) == [b"234"]
        assert server.requests[0].target == f"/a/b/x.bin?{query}"


def test_escapes_of_the_root_are_kept() -> None:
    url = URL.parse("http://host/a%2Fb/gr%C3%B6/ü x")
    assert url.file("s.bin").reveal() == "http://host/a%2Fb/gr%C3%B6/%C3%BC%20x/s.bin"
    assert URL.parse("http://host").file("s.bin").reveal() == "http://host/s.bin"
    assert URL.parse("HTTP://Bücher.example:80/x").reveal() == "http://xn--bcher-kva.example/x"
    assert URL.parse("https://[2001:db8::1]:8443/x").file("y").reveal() == "https://[2001:db8::1]:8443/x/y"


@pytest.mark.parametrize(
    "address", ["ftp://host/x", "file:///etc/passwd", "host/x", "http://", "http://host:x/", "http://host/x#y", "//h/x"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(UnsafeURLError):
        HTTPBackend(address)


SECRET = st.text(st.characters(codec="ascii", min_codepoint=48, max_codepoint=122), min_size=8).map(
    lambda text: "S3CRET" + "".join(filter(str.isalnum, text))
)


@given(SECRET, SECRET, SECRET)
def test_nothing_secret_is_shown(user: str, password: str, value: str) -> None:
    """M8."""
    address = f"https://{user}:{password}@host:8443/data?sig={value}&plain={value}"
    url = URL.parse(address)
    for shown in (str(url), repr(url), str(url.file("x.bin")), redact(address), repr(HTTPBackend(address))):
        assert "S3CRET" not in shown
        assert "host:8443/data" in shown
    assert value in url.reveal()
    assert url.user == (user, password)
    assert redact("some/folder") == "some/folder"


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
    ],
)
def test_inner_addresses_are_known(address: str, public: bool) -> None:
    """M6."""
    assert is_public(address) == public
