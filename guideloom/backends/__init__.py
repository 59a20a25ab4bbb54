"""Bytes by range, from one root: every storage behind one protocol."""

from guideloom._speedups.reading import HAVE_PREADV
from guideloom._typing import PathLike
from guideloom.backends.base import HasSizes, RangeBackend, ReadBackend, RunsJobs
from guideloom.backends.local import LocalBackend
from guideloom.backends.memory import MemoryBackend

__all__ = ["HasSizes", "LocalBackend", "MemoryBackend", "RangeBackend", "ReadBackend", "RunsJobs", "from_url"]


def from_url(url: PathLike) -> ReadBackend:
    """Return the backend for a path or URL.

    Parameters
    ----------
    url : str or path
        A folder, or a ``file://`` URL.

    Raises
    ------
    ValueError
        If the scheme is not one that can be read.
    """
    if isinstance(url, str) and "://" in url:
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ValueError(f"cannot read {parts.scheme}:// URLs; give a folder or a file:// URL")
        url = unquote(parts.path)
    if HAVE_PREADV:
        return LocalBackend(url)
    from guideloom.backends.portable import PortableBackend

    return PortableBackend(url)
