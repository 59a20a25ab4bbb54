"""Fuzz the parsers of untrusted bytes with atheris, which steers by the code that its inputs reach.

Run by `tests.adversity.test_fuzzing`, or by hand: ``python -m tests.adversity.fuzz_parsers CORPUS -max_total_time=60``.
"""

from __future__ import annotations

import contextlib
import json
import sys

import atheris

with atheris.instrument_imports(include=["guideloom.storage", "guideloom.formats", "guideloom.loader.state"]):
    import guideloom as gl
    from guideloom.errors import GuideLoomError
    from guideloom.loader.state import decode_state
    from guideloom.storage.checksums import parse_side_file
    from guideloom.storage.kinds import load_manifest
    from tests.damage import LAYOUTS

MANIFESTS = [load_manifest(layout.files(4096)["guideloom.json"], path="m") for layout in LAYOUTS.values()]
ENCODINGS: list[gl.formats.Encoding] = [
    gl.formats.JSON(),
    gl.formats.Text(),
    gl.formats.NumpyArray("<i4", (2,)),
    gl.formats.NumpyArrays({"a": "<i4", "b": "u1"}),
    gl.formats.Rows([("a", "<i4"), ("b", "u1")]),
]


def fuzz(data: bytes) -> None:
    """Give some bytes to each parser: only errors of ours may come of it, and of encodings `ValueError`."""
    for manifest in MANIFESTS:
        with contextlib.suppress(GuideLoomError):
            manifest.read_shard(data, path="shards/00000000-00000000000000000000000000000000.json")
    with contextlib.suppress(GuideLoomError):
        load_manifest(data, path="m")
    with contextlib.suppress(GuideLoomError):
        parse_side_file(data, file_seed=1, num_blocks=max(len(data) // 4 - 1, 0), path="s")
    for encoding in ENCODINGS:
        with contextlib.suppress(ValueError, RecursionError):  # of which a reader makes a DecodeError
            encoding.decode(memoryview(data))
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(GuideLoomError):
        decode_state(state)


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
