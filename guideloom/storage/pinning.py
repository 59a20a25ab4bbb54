"""A dataset pinned by its fingerprint."""

import re

from guideloom.errors import FingerprintMismatchError
from guideloom.storage.manifest import Manifest

_FINGERPRINT = re.compile("sha256:[0-9a-f]{64}")


def check_expected(expect: str | None) -> None:
    """Raise `ValueError` if `expect` is no fingerprint."""
    if expect is not None and not _FINGERPRINT.fullmatch(expect):
        raise ValueError(f"expect is a fingerprint, 'sha256:' and 64 hexadecimal digits in lower case, not {expect!r}")


def check_fingerprint(manifest: Manifest, expect: str | None, location: str, *, read: str | None = None) -> None:
    """Raise `FingerprintMismatchError` if a manifest is not the one expected.

    `read` is the fingerprint of what is read of it, where that leaves annotation layers out; it will do as well.
    """
    if expect is not None and expect not in (manifest.fingerprint, read):
        raise FingerprintMismatchError(
            f"snapshot {manifest.snapshot} of {location} has fingerprint {manifest.fingerprint}, but {expect} was "
            "expected: it is another dataset or another snapshot; `guideloom snapshots` lists what a folder holds",
            path=location,
            expected=expect,
            found=manifest.fingerprint,
        )
