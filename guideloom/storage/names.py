"""Which names a manifest may use for its files: those that cannot lead out of the dataset; and those of a writer."""

import re
import secrets
import unicodedata
import urllib.parse

from guideloom.errors import UnsafePathError

MAX_NAME_BYTES = 4096
MAX_PART_BYTES = 255

SHARDS_FOLDER = "shards"
CLAIMS_FOLDER = "claims"
SHARD_SUFFIX = ".json"
DATA_SUFFIX = ".bin"
CHECKSUMS_SUFFIX = ".crc32c"
INDEX_SUFFIX = ".index"
SPANS_SUFFIX = ".spans"
PAYLOADS_SUFFIX = ".payloads"
LAYER_SUFFIX = ".layer.json"

SNAPSHOT = re.compile("0|[1-9][0-9]{0,17}", re.ASCII)  # the folder of one

_MAX_DECODINGS = 3
_PLAIN_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?"
_PLAIN_NAME = re.compile(rf"{_PLAIN_PART}(?:/{_PLAIN_PART}){{0,31}}", re.ASCII)
_SCHEME = re.compile(r" *[A-Za-z][A-Za-z0-9+.-]*:")  # parsers of URLs take no notice of spaces before it
_STEM = re.compile(r"(\d{8})-[0-9a-f]{32}", re.ASCII)
_CONTROL = {"Cc", "Cs", "Zl", "Zp"}  # control characters, half surrogate pairs, line and paragraph separators
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # would disguise a name in a log


def check_name(name: str) -> str:
    """Return `name` if it names a file within a dataset, whatever file system or server it is joined to.

    Spaces, ``#``, ``?`` and letters of any script are welcome; the backends quote them. A name is also refused if it
    becomes an unsafe one when percent-escapes in it are decoded, since servers and proxies may do that.

    Parameters
    ----------
    name : str
        Relative to the root of the dataset, its parts divided by ``/``.

    Raises
    ------
    UnsafePathError
        If the name is empty, absolute, or longer than 4,096 bytes; starts with a drive or a scheme; holds ``..``, a
        backslash, a control character or invalid UTF-8; or has a part that is empty, longer than 255 bytes, or ends
        with a dot or a space.
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    spelling, fault = name, _fault(name)
    for _ in range(_MAX_DECODINGS):
        if fault or "%" not in spelling:
            break
        spelling = urllib.parse.unquote(spelling, errors="surrogateescape")
        fault = _fault(spelling)
    else:
        if urllib.parse.unquote(spelling, errors="surrogateescape") != spelling:
            fault = "its percent-escapes are escaped again and again"
    if fault:
        raise UnsafePathError(f"the file name {_excerpt(name)} is refused: {fault}", name=name)
    return name


def new_stem(number: int) -> str:
    """Return the name of a new file of shard `number`, without suffix; nobody else has it."""
    return f"{number:08d}-{secrets.token_hex(16)}"


def shard_of(stem: str) -> int | None:
    """Return the number of the shard whose writer made a name, if one did."""
    match = _STEM.fullmatch(stem)
    return int(match[1]) if match else None


def seed_of(stem: str, part: int = 0) -> int:
    """Return the checksum seed of a writer's file: 32 bits of its id, others for each `part` from 0 to 3."""
    return int(stem[9 + 8 * part : 17 + 8 * part], 16)


def _fault(name: str) -> str | None:
    """Say why one spelling of a name is unsafe."""
    if not name:
        return "it is empty"
    if len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        return f"it is longer than {MAX_NAME_BYTES} bytes"
    if any(unicodedata.category(letter) in _CONTROL or letter in _BIDIRECTIONAL for letter in name):
        return "it holds a control character, a line separator or invalid UTF-8"
    if "\\" in name:
        return "it holds a backslash"
    if name.startswith("/"):
        return "it is absolute"
    if _SCHEME.match(name):
        return "it starts with a drive letter or a scheme"
    for part in name.split("/"):
        if not part:
            return "a part of it is empty"
        if part.endswith((".", " ")):
            return f"its part {part[-16:]!r} ends with a dot or a space"
        if len(part.encode()) > MAX_PART_BYTES:
            return f"a part of it is longer than {MAX_PART_BYTES} bytes"
    return None


def _excerpt(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}…"
