"""The kinds of datasets: from the bytes of a manifest to the class that knows what they mean."""

from guideloom.errors import ManifestError
from guideloom.storage.document_manifest import DocumentManifest
from guideloom.storage.records import DocumentsRecord, decode_manifest
from guideloom.storage.stream_manifest import StreamManifest


def load_manifest(data: bytes, *, path: str) -> StreamManifest | DocumentManifest:
    """Return the manifest that `data` holds.

    Parameters
    ----------
    data : bytes
        A whole ``guideloom.json``, at most 64 MiB. It may be hostile: nothing is allocated from a number in it.
    path : str
        Where the data come from, for messages.

    Raises
    ------
    ManifestError
        If `data` are not a manifest, of a later version, or contradict themselves; the message names the place.
    UnsafePathError
        If a file name could lead out of the dataset.
    """
    record = decode_manifest(data, path=path)
    manifest: StreamManifest | DocumentManifest
    if isinstance(record, DocumentsRecord):
        manifest = DocumentManifest.from_record(record, path=path)
    else:
        manifest = StreamManifest.from_record(record, path=path)
    if manifest.fingerprint != record.fingerprint:
        raise ManifestError(
            f"{path}: fingerprint is {record.fingerprint[:100]!r}, but that of the content named is "
            f"{manifest.fingerprint!r}: the manifest was changed",
            path=path,
        )
    return manifest
