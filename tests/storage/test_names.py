import os
import posixpath
import string
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.errors import UnsafePathError
from guideloom.storage.names import check_name

GOOD = [
    "a",
    "a.bin",
    "shards/00000003-0123456789abcdef0123456789abcdef.bin",
    "data/c#/s 1.bin",
    "größe%20.bin",
    "データ.bin",
    "a?b.bin",
    "100%",
    "%zz",
    "50%25",
    ".hidden",
    "..a",
    "a..b/c",
    "...a/b",
    "~user/x",
    "-rf",
    " leading",
    "12:30/x",
    "x/a:b",
    "a" * 255,
    "é" * 127,
    "/".join(["a" * 100] * 40),
]

BAD = [
    " C:x",
    "",
    "/",
    "/etc/passwd",
    "//host/share",
    "///a",
    ".",
    "..",
    "./a",
    "../a",
    "../../etc/passwd",
    "a/../b",
    "a/..",
    "a/.",
    "a/./b",
    "shards/../../x",
    "a//b",
    "a/",
    "a/b/",
    "...",
    "a/.../b",
    "\\",
    "a\\b",
    "..\\a",
    "\\\\host\\share",
    "C:",
    "C:\\a",
    "C:/a",
    "c:a",
    "file:a",
    "file:///etc/passwd",
    "http://host/a",
    "https:a",
    "s3://bucket/a",
    "javascript:a",
    "data:,a",
    "a.bin:stream",
    "svn+ssh:a",
    "\x00",
    "a\x00",
    "a\x00.bin",
    "a\nb",
    "a\rb",
    "a\tb",
    "\x1b[2Ja",
    "a\x7f",
    "a\x85b",
    "a\u2028b",
    "a\u2029b",
    "a\u202eb",
    "a\u2066b",
    "a\ud800",
    "\udcff",
    "a.",
    "a ",
    "a. ",
    "a /b",
    "a./b",
    " ",
    "a/ /b",
    "a" * 256,
    "x/" + "a" * 256,
    "é" * 128,
    "/".join(["a" * 100] * 41),
    "%2e%2e",
    "%2e%2e/a",
    "%2E%2E/a",
    "a/%2e%2e/b",
    ".%2e/a",
    "%2e./a",
    "%252e%252e/a",
    "%25252e%25252e/a",
    "%2525252e%2525252e/a",
    "%2fetc",
    "a%2f%2fb",
    "a%5cb",
    "a%00",
    "a%0ab",
    "%c3",
    "file%3a//a",
    "C%3a/a",
    "a%20",
]


@pytest.mark.parametrize("name", GOOD, ids=ascii)
def test_safe_names_are_returned(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(UnsafePathError, match="refused") as caught:
        check_name(name)
    assert caught.value.name == name
    assert len(str(caught.value)) < 250
    str(caught.value).encode()


@given(st.text(alphabet=st.sampled_from("ab./\\%2e5fFcC: \x00é~"), max_size=24))
def test_what_is_accepted_stays_inside(name: str) -> None:
    try:
        check_name(name)
    except UnsafePathError:
        return
    spelling = name
    while True:
        joined = os.path.normpath(posixpath.join("/data/set", spelling))
        assert joined.startswith("/data/set/")
        assert "\\" not in spelling
        assert not urllib.parse.urlsplit(spelling).scheme
        decoded = urllib.parse.unquote(spelling)
        if decoded == spelling:
            return
        spelling = decoded


@given(st.lists(st.text(string.ascii_letters + string.digits + "_-.", min_size=1, max_size=80), min_size=1, max_size=4))
def test_the_quick_check_agrees_with_the_rule(parts: list[str]) -> None:
    expected = all(not part.endswith(".") for part in parts)
    try:
        check_name("/".join(parts))
    except UnsafePathError:
        assert not expected
    else:
        assert expected
