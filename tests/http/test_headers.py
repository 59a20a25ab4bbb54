"""Headers of any content: never another error than ours, and nothing accepted that is not what was asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guideloom.backends.http_answers import (
    ContentRange,
    Version,
    content_length,
    is_encoded,
    retry_after,
    total_of_unsatisfied,
)

NUMBERS = st.integers(0, 2**64)


@given(NUMBERS, NUMBERS, st.one_of(NUMBERS, st.just("*")))
def test_content_ranges_are_read_if_they_make_sense(start: int, last: int, total: int | str) -> None:
    found = ContentRange.parse(f"bytes {start}-{last}/{total}")
    makes_sense = start <= last and (total == "*" or last < int(total))
    if found is None:
        assert not makes_sense or max(start, last, 0 if total == "*" else int(total)) >= 10**19
    else:
        assert makes_sense
        assert found == ContentRange(start, last + 1, None if total == "*" else int(total))


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    ContentRange.parse(text)
    total_of_unsatisfied(text)
    length = content_length({"Content-Length": text})
    assert length is None or length >= 0
    seconds = retry_after({"Retry-After": text})
    assert seconds is None or seconds >= 0
    is_encoded({"Content-Encoding": text})
    version = Version.of({"ETag": text, "Last-Modified": text}, 5)
    version.check_same(version, "a.bin")
    assert version.strong_etag is None or text.startswith('"')
