"""Verify a dataset, wherever it lies, from code that is not asynchronous."""

from __future__ import annotations

import os

from guideloom._typing import PathLike
from guideloom.backends import LocalBackend, from_url
from guideloom.backends.base import ReadBackend
from guideloom.bridge import run_sync
from guideloom.storage.pinning import check_expected
from guideloom.storage.verification import Mode, Verification
from guideloom.storage.verifier import Progress, Verifier


def verify(
    location: PathLike | ReadBackend,
    *,
    mode: Mode = "full",
    snapshot: int | None = None,
    expect: str | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Verification:
    """Hold every file of a dataset against its manifest, and list what is damaged.

    Files are read in parallel, in pieces of 2 MiB; all memory together is at most 64 MiB, and some 10 bytes for each
    span of the annotation layers that are being read.

    Parameters
    ----------
    location : str, path or ReadBackend
        A folder, a ``file://`` URL, or a backend that is bound to what holds the dataset.
    mode : {"full", "quick"}, default "full"
        ``"full"`` reads every byte: each block against its checksum, the rows of each shard against the SHA-256 in the
        manifest, each span of a layer against its own checksum and the index against the spans, the tables of checksums
        and the manifests against themselves and each other. ``"quick"`` looks at manifests, and at the existence and
        size of each file.
    snapshot : int, optional
        An earlier snapshot. In a folder all other snapshots are checked, too.
    expect : str, optional
        The fingerprint that the dataset must have, as `open_dataset` takes it. When it has, and ``"full"`` finds no
        damage, then every row is one that this fingerprint was made of.
    progress : callable, optional
        Called with what is done and what there is to do: bytes, or files in quick mode.

    Returns
    -------
    Verification

    Raises
    ------
    MissingFileError
        If there is no such dataset or snapshot.
    FingerprintMismatchError
        If the dataset has another fingerprint than `expect`.
    ValueError
        If `mode` or `expect` is none.

    Examples
    --------
    >>> found = verify("data/corpus")  # doctest: +SKIP
    >>> found.ok, found.damages  # doctest: +SKIP
    (True, ())
    """
    if mode not in ("full", "quick"):
        raise ValueError(f"mode is 'full' or 'quick', not {mode!r}")
    check_expected(expect)
    if isinstance(location, ReadBackend):
        backend, name, names = location, repr(location), []
    else:
        backend, name = from_url(location), os.fspath(location)
        names = _files_below(backend.root) if isinstance(backend, LocalBackend) else []

    async def run() -> Verification:
        await backend.open()
        try:
            return await Verifier(backend, mode, progress).run(snapshot, names, expect=expect, location=name)
        finally:
            await backend.close()

    return run_sync(run())


def _files_below(root: str) -> list[str]:
    """Return the names of all that is no folder below a folder; links are not followed."""
    return [
        os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
        for folder, _, names in os.walk(root)
        for name in names
    ]
