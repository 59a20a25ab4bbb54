"""Open a dataset from its manifest."""

from __future__ import annotations

import asyncio
import os
from typing import Any, overload

from guideloom._typing import PathLike
from guideloom.backends import from_url
from guideloom.backends.base import ReadBackend
from guideloom.backends.urls import redact
from guideloom.bridge import run_sync
from guideloom.datasets.documents import DocumentDataset
from guideloom.datasets.layer_selection import Layers
from guideloom.datasets.selection import Fields
from guideloom.datasets.stream import StreamDataset
from guideloom.errors import BackendError, ManifestError, MissingFileError
from guideloom.formats.encoding import Encoding
from guideloom.storage.document_manifest import DocumentManifest
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME, REREAD_SECONDS, Manifest, snapshot_name
from guideloom.storage.pinning import check_expected, check_fingerprint
from guideloom.storage.records import MAX_MANIFEST_BYTES
from guideloom.storage.stream_manifest import StreamManifest


@overload
def open_dataset(
    location: PathLike | ReadBackend,
    *,
    window: int,
    stride: int | None = None,
    offset: int = 0,
    fields: Fields = None,
    layers: Layers = (),
    verify: bool = True,
    snapshot: int | None = None,
    expect: str | None = None,
) -> StreamDataset: ...
@overload
def open_dataset(
    location: PathLike | ReadBackend,
    *,
    fields: Fields = None,
    encoding: Encoding | None = None,
    snapshot: int | None = None,
    expect: str | None = None,
) -> DocumentDataset: ...
def open_dataset(
    location: PathLike | ReadBackend,
    *,
    window: int | None = None,
    stride: int | None = None,
    offset: int | None = None,
    fields: Fields = None,
    layers: Layers = (),
    verify: bool = True,
    encoding: Encoding | None = None,
    snapshot: int | None = None,
    expect: str | None = None,
) -> StreamDataset | DocumentDataset:
    """Open a dataset; only its manifest is read.

    Parameters
    ----------
    location : str, path or ReadBackend
        A folder, a ``file://``, ``http://`` or ``https://`` URL, or a backend that is bound to what holds the dataset.
    window : int
        Elements of a window, for a stream; documents have none.
    stride : int, default `window`
        Elements from the start of one window to the next. ``window=2049, stride=2048`` gives each window of 2048 its
        label token.
    offset : int, default 0
        Elements before the first window.
    fields : None, sequence of str, or mapping of str to dtype, default None
        All fields as stored; some of them; or some, converted as they are read. An integer that does not fit the dtype
        asked for is an error.
    layers : sequence of str, or mapping of str to Encoding, default ()
        The annotation layers of a stream to deliver with each window, as `Spans`; no byte of others is read. A mapping
        says what makes values of payloads in place of the registered encoding that the manifest names.
    verify : bool, default True
        Whether every 4 KiB block of a stream is compared with its checksum before any of it is delivered. Documents
        always are.
    encoding : Encoding, optional
        What makes values of documents, in place of the registered encoding that the manifest names;
        ``guideloom.formats.Bytes()`` gives the stored bytes.
    snapshot : int, optional
        An earlier snapshot; the newest by default.
    expect : str, optional
        The fingerprint that the dataset must have: ``"sha256:…"``, as the dataset gives it. It covers what the data
        mean and the SHA-256 of every shard, in order, so one string pins all of them; it does not cover metadata, file
        names, or the number of the snapshot. Opening compares the fingerprint alone. That the bytes are those of these
        hashes is what `verify` proves; until then a read finds damage, but not a shard that was exchanged together with
        its checksums.

    Returns
    -------
    StreamDataset or DocumentDataset
        What the manifest says.

    Raises
    ------
    MissingFileError
        If there is no dataset.
    ManifestError
        If its manifest is damaged, or needs a newer version of this library.
    UnknownEncodingError
        If the encoding of documents is not registered.
    FingerprintMismatchError
        If it has another fingerprint than `expect`.
    ValueError, TypeError
        If an argument does not suit the dataset.

    Examples
    --------
    >>> dataset = open_dataset("data/corpus", window=2048, fields={"tokens": "int64"})  # doctest: +SKIP
    >>> documents = open_dataset("data/chats")  # doctest: +SKIP
    """
    check_expected(expect)
    backend, name, manifest = find_dataset(location, snapshot)
    check_fingerprint(manifest, expect, name, read=_fingerprint_of(manifest, layers))
    if isinstance(manifest, DocumentManifest):
        asked = {
            "window": window,
            "stride": stride,
            "offset": offset,
            "layers": layers or None,
            "verify": None if verify else verify,
        }
        wrong = [argument for argument, value in asked.items() if value is not None]
        if wrong:
            raise ValueError(f"{name} holds documents, always whole and always checked: leave out {', '.join(wrong)}")
        return DocumentDataset(backend, manifest, name, fields, encoding)
    if window is None:
        raise ValueError(f"{name} is a stream, which is read in windows: say window=, the elements of one")
    if encoding is not None:
        raise ValueError(f"{name} is a stream, whose rows have no encoding: leave out encoding")
    return StreamDataset(
        backend=backend,
        manifest=manifest,
        location=name,
        window=window,
        stride=window if stride is None else stride,
        offset=0 if offset is None else offset,
        fields=fields,
        verify=verify,
        layers=layers,
    )


def find_dataset(
    location: PathLike | ReadBackend, snapshot: int | None = None
) -> tuple[ReadBackend, str, StreamManifest | DocumentManifest]:
    """Return the backend, the name and the manifest of a dataset of any kind. Raises as `open_dataset` does."""
    if isinstance(location, ReadBackend):
        backend, name = location, repr(location)
    else:
        backend, name = from_url(location), redact(os.fspath(location))
    return backend, name, run_sync(_read_manifest(backend, name, snapshot))


def reopen(
    backend: ReadBackend, location: str, snapshot: int, fingerprint: str, options: dict[str, Any]
) -> StreamDataset | DocumentDataset:
    """Open the dataset that was pickled, in another process perhaps."""
    try:
        manifest = run_sync(_read_manifest(backend, location, snapshot))
    except MissingFileError:  # a copy of the dataset without its history
        manifest = run_sync(_read_manifest(backend, location, None))
    check_fingerprint(manifest, fingerprint, location, read=_fingerprint_of(manifest, options.get("layers", ())))
    if isinstance(manifest, DocumentManifest):
        return DocumentDataset(backend, manifest, location, **options)
    return StreamDataset(backend, manifest, location, **options)


def _fingerprint_of(manifest: Manifest, layers: Layers) -> str:
    """Return the fingerprint of what is read: a layer that is not asked for may be added at any time."""
    return manifest.fingerprint_of(layers) if isinstance(manifest, StreamManifest) else manifest.fingerprint


async def _read_manifest(
    backend: ReadBackend, location: str, snapshot: int | None
) -> StreamManifest | DocumentManifest:
    path = MANIFEST_NAME if snapshot is None else snapshot_name(snapshot)
    await backend.open()
    try:
        before = None
        while True:
            data = await backend.read_file(path, max_bytes=MAX_MANIFEST_BYTES)
            try:
                return load_manifest(data, path=f"{location}/{path}")
            except ManifestError:
                if data == before:
                    raise
            before = data
            await asyncio.sleep(REREAD_SECONDS)
    except MissingFileError as error:
        if snapshot is not None:
            reason = f"there is no snapshot {snapshot} at {location}: {path} is missing"
        elif await _is_there(backend, snapshot_name(0)):
            reason = f"nothing has been committed to {location} yet; call commit() once its shards are written"
        else:
            reason = f"there is no dataset at {location}: it has no {path}"
        raise MissingFileError(reason, path=path) from error
    except BackendError as error:
        raise type(error)(f"{location}: {error}", **error.details) from error
    finally:
        await backend.close()


async def _is_there(backend: ReadBackend, path: str) -> bool:
    try:
        await backend.read_file(path, max_bytes=MAX_MANIFEST_BYTES)
    except BackendError:
        return False
    return True
