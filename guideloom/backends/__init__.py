"""Bytes by range, from one root: every storage behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guideloom._speedups.reading import HAVE_PREADV
from guideloom._typing import PathLike
from guideloom.backends.base import HasSizes, RangeBackend, ReadBackend, RunsJobs
from guideloom.backends.coalescing import CoalescingBackend
from guideloom.backends.local import LocalBackend
from guideloom.backends.memory import MemoryBackend
from guideloom.backends.metered import MeteredBackend
from guideloom.backends.retrying import RetryingBackend, RetryPolicy
from guideloom.backends.wrapper import HasStats, WrapperBackend

if TYPE_CHECKING:
    from guideloom.backends.http import HTTPBackend
    from guideloom.backends.http_client import Signed

__all__ = [
    "CoalescingBackend",
    "HTTPBackend",
    "HasSizes",
    "HasStats",
    "LocalBackend",
    "MemoryBackend",
    "MeteredBackend",
    "RangeBackend",
    "ReadBackend",
    "RetryPolicy",
    "RetryingBackend",
    "RunsJobs",
    "Signed",
    "WrapperBackend",
    "from_url",
]


def from_url(url: PathLike, **options: Any) -> ReadBackend:
    """Return the backend for a path or URL.

    Parameters
    ----------
    url : str or path
        A folder, a ``file://`` URL, or an ``http://`` or ``https://`` URL, which gets an `HTTPBackend` with retries,
        coalescing and counts around it.
    **options
        As `HTTPBackend` takes them, for URLs of a server.

    Raises
    ------
    ValueError
        If the scheme is not one that can be read.
    """
    if isinstance(url, str) and "://" in url:
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(url)
        if parts.scheme in ("http", "https"):
            from guideloom.backends.http import HTTPBackend

            return MeteredBackend(CoalescingBackend(RetryingBackend(HTTPBackend(url, **options))))
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ValueError(
                f"cannot read {parts.scheme}:// URLs; give a folder, or a file://, http:// or https:// URL"
            )
        url = unquote(parts.path)
    if options:
        raise TypeError(f"these options are for URLs of a server: {', '.join(sorted(options))}")
    if HAVE_PREADV:
        return LocalBackend(url)
    from guideloom.backends.portable import PortableBackend

    return PortableBackend(url)


def __getattr__(name: str) -> object:
    if name == "HTTPBackend":  # imports aiohttp, as does the next
        from guideloom.backends.http import HTTPBackend

        return HTTPBackend
    if name == "Signed":
        from guideloom.backends.http_client import Signed

        return Signed
    raise AttributeError(f"module 'guideloom.backends' has no attribute {name!r}")
