"""What the headers of an answer say, and whether that is what was asked for. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from guideloom.errors import FileChangedError

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Version:
    """Which version of a file an answer came from.

    Parameters
    ----------
    etag, last_modified : str or None
        As the server says.
    total : int or None
        Bytes of the whole file.
    """

    etag: str | None
    last_modified: str | None
    total: int | None

    @classmethod
    def of(cls, headers: Mapping[str, str], total: int | None) -> Version:
        """Return the version that some headers tell."""
        return cls(headers.get("ETag"), headers.get("Last-Modified"), total)

    @property
    def strong_etag(self) -> str | None:
        """The ETag, if equal ones mean equal bytes."""
        return self.etag if self.etag is not None and self.etag.startswith('"') else None

    def __str__(self) -> str:
        validator = self.etag or (f"last modified {self.last_modified}" if self.last_modified else "no validator")
        return f"{validator} of {'unknown size' if self.total is None else f'{self.total} bytes'}"

    def check_same(self, found: Version, path: str) -> None:
        """Raise ``FileChangedError`` if an answer came from another version than this one."""
        same = self.total == found.total and self.etag == found.etag
        if same and self.strong_etag is None:
            same = self.last_modified == found.last_modified
        if not same:
            raise FileChangedError(
                f"{path} was replaced on the server while it was read from: it was {self}, and is {found}. Files of a "
                "dataset never change; restore it, or open the dataset again",
                path=path,
                expected=str(self),
                found=str(found),
            )


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Bytes ``start`` to ``stop`` of a file of ``total`` bytes, where that is known."""

    start: int
    stop: int
    total: int | None

    @classmethod
    def parse(cls, value: str | None) -> ContentRange | None:
        """Return what a ``Content-Range`` of a 206 says; none if it is missing or makes no sense."""
        match = _CONTENT_RANGE.fullmatch(value or "")
        if match is None:
            return None
        start, last = int(match[1]), int(match[2])
        total = None if match[3] == "*" else int(match[3])
        if last < start or (total is not None and last >= total):
            return None
        return cls(start, last + 1, total)


def total_of_unsatisfied(value: str | None) -> int | None:
    """Return the size of the file as the ``Content-Range`` of a 416 says it, if it does."""
    match = _UNSATISFIED.fullmatch(value or "")
    return None if match is None else int(match[1])


def content_length(headers: Mapping[str, str]) -> int | None:
    """Return the announced bytes of a body, if they are."""
    value = headers.get("Content-Length", "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Return whether a body is something else than the file's bytes, compressed for one."""
    return headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait, given as such or as a date; none if it does not say."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max((date - datetime.now(UTC)).total_seconds(), 0.0)
