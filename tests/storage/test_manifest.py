import copy
import hashlib
import json
import pickle
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.errors import GuideLoomError, ManifestError, UnsafePathError
from guideloom.formats.schema import Field, Schema
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import encode_manifest
from guideloom.storage.records import MAX_MANIFEST_BYTES, FileEntry, ShardEntry
from guideloom.storage.stream_manifest import StreamManifest

PACKED = Schema.of(np.dtype([("tokens", "<u2"), ("loss_mask", "u1")]))
PLAIN = Schema.of("<u2")
ALIGNED = Schema.of(np.dtype([("a", "<i4"), ("b", "<i8")], align=True))


def shard(number: int, rows: int, schema: Schema = PACKED, **changes: Any) -> ShardEntry:
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    stem = f"shards/{number:08d}-{digest[:32]}"
    fields: dict[str, Any] = {
        "file": f"{stem}.bin",
        "byte_offset": 0,
        "bytes": rows * schema.row_bytes,
        "sha256": digest,
        "checksums": f"{stem}.crc32c",
        "checksum_seed": int(digest[:8], 16),
    }
    return ShardEntry(number, rows, (FileEntry(**(fields | changes)),))


def manifest(*shards: ShardEntry, schema: Schema = PACKED, snapshot: int = 1, **metadata: Any) -> StreamManifest:
    return StreamManifest(schema, (schema,), shards, snapshot, metadata)


THREE = manifest(shard(0, 1000), shard(1, 0), shard(5, 7), name="größe", counts=[1, 2.5, None, {"deep": True}])


def changed(change: Callable[[Any], Any]) -> bytes:
    """The three shards' manifest with a change, and a fingerprint to match where one can be made."""
    document = json.loads(encode_manifest(THREE))
    change(document)
    return json.dumps(document).encode()


def put(*path: Any) -> Callable[[Any], None]:
    *parents, key, value = path

    def change(document: Any) -> None:
        for parent in parents:
            document = document[parent]
        document[key] = value

    return change


@pytest.mark.parametrize(
    "original",
    [
        THREE,
        manifest(),
        manifest(snapshot=0),
        manifest(shard(3, 2, ALIGNED), schema=ALIGNED),
        StreamManifest(
            Schema((*ALIGNED.fields, Field("c", np.dtype("u1"), (), 16)), 18),
            (ALIGNED, Schema((Field("c", np.dtype("u1"), (), 0),), 2)),
            (ShardEntry(0, 3, (shard(0, 3, ALIGNED).files[0], shard(1, 3, PLAIN).files[0])),),
            9,
        ),
    ],
    ids=["three shards", "empty", "snapshot 0", "aligned", "two groups"],
)
def test_a_manifest_comes_back(original: StreamManifest) -> None:
    data = encode_manifest(original)
    loaded = load_manifest(data, path="guideloom.json")
    assert loaded == original
    assert loaded.schema.dtype == original.schema.dtype
    assert [group.dtype for group in loaded.groups] == [group.dtype for group in original.groups]
    assert encode_manifest(loaded) == data
    assert pickle.loads(pickle.dumps(loaded)) == original


def test_what_a_manifest_says() -> None:
    assert (THREE.kind, THREE.num_rows, THREE.num_bytes) == ("stream", 1007, 3021)
    document = json.loads(encode_manifest(THREE))
    assert {key: document[key] for key in ("format", "version", "requires", "kind", "snapshot", "block_bytes")} == {
        "format": "guideloom",
        "version": 0,
        "requires": [],
        "kind": "stream",
        "snapshot": 1,
        "block_bytes": 4096,
    }
    assert document["groups"] == [{"fields": ["tokens", "loss_mask"], "row_bytes": 3}]
    assert document["schema"]["itemsize"] == 3
    assert document["schema"]["fields"][1] == {"name": "loss_mask", "dtype": "|u1", "shape": [], "offset": 2}


def test_the_fingerprint_is_the_hash_of_a_text_that_any_tool_can_write() -> None:
    digest = THREE.shards[2].files[0].sha256
    text = (
        "guideloom stream\n"
        "row 3\n"
        'field "tokens" <u2 [] 0\n'
        'field "loss_mask" |u1 [] 2\n'
        'group 3 "tokens" "loss_mask"\n'
        f"shard 7 {digest}\n"
    )
    expected = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert manifest(THREE.shards[2]).fingerprint == expected


def test_the_fingerprint_is_of_content_alone() -> None:
    renamed: dict[str, Any] = {"checksums": "y", "checksum_seed": 3, "byte_offset": 8, "bytes": 10**6}
    same = manifest(
        *(
            shard(9 + entry.number, entry.rows, file=f"{entry.number}.bin", sha256=entry.files[0].sha256, **renamed)
            for entry in THREE.shards
        ),
        snapshot=7,
        other=True,
    )
    assert same.fingerprint == THREE.fingerprint
    first, second, third = THREE.shards
    others = [
        manifest(first, second),
        manifest(shard(0, 1000, sha256=third.files[0].sha256), second, shard(5, 7, sha256=first.files[0].sha256)),
        manifest(shard(0, 999), second, third),
        manifest(shard(0, 1000, sha256="0" * 64), second, third),
        manifest(first, second, third, schema=Schema.of(np.dtype([("tokens", "<i2"), ("loss_mask", "u1")]))),
        manifest(first, second, third, schema=Schema.of(np.dtype([("token", "<u2"), ("loss_mask", "u1")]))),
    ]
    assert len({other.fingerprint for other in others} | {THREE.fingerprint}) == len(others) + 1


def test_white_space_order_and_escapes_do_not_matter() -> None:
    document = json.loads(encode_manifest(THREE))
    turned = dict(reversed(document.items()))
    for data in (json.dumps(document, indent=2), json.dumps(turned), json.dumps(document, ensure_ascii=True)):
        assert load_manifest(data.encode(), path="m") == THREE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", "zarr"), "no manifest of GuideLoom"),
        (lambda d: d.pop("format"), "no manifest of GuideLoom"),
        (lambda d: d.pop("version"), "version"),
        (lambda d: d.pop("requires"), "requires"),
        (lambda d: d.pop("kind"), "kind"),
        (lambda d: d.pop("metadata"), "metadata"),
        (put("version", 1), "version is 1.*upgrade"),
        (put("version", "0"), "upgrade"),
        (put("requires", ["zstd"]), r"requires \[\"zstd\"\].*upgrade"),
        (put("kind", "tables"), 'kind is "tables".*upgrade'),
        (put("block_bytes", 8192), "block_bytes"),
        (put("snapshot", -1), "snapshot"),
        (put("snapshot", 2**63), "snapshot"),
        (put("snapshot", True), "snapshot"),
        (put("snapshot", 1.0), "snapshot"),
        (put("snapshot", None), "snapshot"),
        (put("surprise", 1), "surprise"),
        (put("shards", 0, "surprise", 1), "surprise"),
        (put("shards", 0, "files", 0, "surprise", 1), "surprise"),
        (put("schema", "surprise", 1), "surprise"),
        (put("fingerprint", "sha256:" + "0" * 64), "fingerprint"),
        (put("fingerprint", 5), "fingerprint"),
        (put("shards", 2, "rows", 6), "fingerprint"),
        (put("shards", 0, "rows", 1001), r"shards\[0\].files\[0\] has 3000 bytes, too few for 1001 rows"),
        (put("shards", 0, "rows", -1), r"shards\[0\].rows|shards\[...\].rows"),
        (put("shards", 0, "rows", 2**62), "too few"),
        (put("shards", 0, "rows", 2**70), "rows"),
        (put("shards", 0, "rows", 1.5), "rows"),
        (put("shards", 0, "files", 0, "byte_offset", 1), "too few"),
        (put("shards", 0, "files", 0, "byte_offset", -1), "byte_offset"),
        (put("shards", 0, "files", 0, "byte_offset", 2**63 - 1), "too few"),
        (put("shards", 0, "files", 0, "bytes", 2999), "too few"),
        (put("shards", 0, "files", 0, "bytes", 2**63), "bytes"),
        (put("shards", 0, "files", 0, "sha256", "0" * 63), "sha256"),
        (put("shards", 0, "files", 0, "sha256", "A" * 64), "lower-case"),
        (put("shards", 0, "files", 0, "sha256", "0" * 63 + "\n"), "lower-case"),
        (put("shards", 0, "files", 0, "checksum_seed", 2**32), "checksum_seed"),
        (put("shards", 0, "files", 0, "checksum_seed", -1), "checksum_seed"),
        (put("shards", 0, "files", []), r"shards\[0\] has 0 files for 1"),
        (lambda d: d["shards"][0]["files"].append(d["shards"][1]["files"][0]), r"shards\[0\] has 2 files for 1"),
        (put("shards", 1, "number", 0), r"shards\[1\].number is 0, after 0"),
        (put("shards", 0, "number", 6), "must increase"),
        (put("shards", 0, "number", -1), "number"),
        (put("shards", 0, "number", 100_000_000), "number"),
        (lambda d: d["shards"].reverse(), "must increase"),
        (put("groups", []), "column groups hold the fields"),
        (put("groups", 0, "fields", ["tokens"]), "column groups hold the fields"),
        (put("groups", 0, "fields", ["tokens", "tokens"]), "column groups hold the fields"),
        (put("groups", 0, "fields", ["tokens", "mask"]), "column groups hold the fields"),
        (put("groups", 0, "row_bytes", 4), "row"),
        (put("groups", 0, "row_bytes", 2), "row"),
        (put("groups", [{"fields": [name], "row_bytes": 1} for name in ("loss_mask", "tokens")]), r"groups\[0\]"),
        (put("schema", "itemsize", 4), "row"),
        (put("schema", "itemsize", 2), "row"),
        (put("schema", "fields", []), "at least one field"),
        (put("schema", "fields", 0, "dtype", "|O"), "schema: .*'tokens' has dtype '|O'"),
        (put("schema", "fields", 0, "dtype", ["<u2", 3]), "dtype"),
        (put("schema", "fields", 0, "offset", -2), "offset"),
        (put("schema", "fields", 0, "offset", 1), "overlap"),
        (put("schema", "fields", 0, "shape", [2**40]), "shape"),
        (put("metadata", []), "metadata"),
        (put("metadata", {"a": float("nan")}), "JSON"),
        (put("metadata", {"a": 2**64}), "64 bits"),
    ],
)
def test_contradictions_are_refused_and_named(change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        load_manifest(changed(change), path="somewhere/guideloom.json")
    assert str(caught.value).startswith("somewhere/guideloom.json: ")
    assert caught.value.path == "somewhere/guideloom.json"


@pytest.mark.parametrize("key", ["file", "checksums"])
def test_unsafe_names_are_refused_and_named(key: str) -> None:
    with pytest.raises(UnsafePathError, match=r"^m: shards\[2\].files\[0\]: the file name '\.\./x' is refused"):
        load_manifest(changed(put("shards", 2, "files", 0, key, "../x")), path="m")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b"\xff\xfe",
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        encode_manifest(THREE)[:-2],
        encode_manifest(THREE) + b"{}",
        encode_manifest(THREE).replace(b'"snapshot":1', b'"snapshot":NaN'),
        encode_manifest(THREE).replace(b'"snapshot":1', b'"snapshot":1e0'),
        encode_manifest(THREE).replace(b'"snapshot":1', b'"snapshot":' + b"1" * 5000),
        encode_manifest(THREE).replace("größe".encode(), b"\xff"),
        b'{"format":"guideloom","version":0,"requires":' + b"[" * 1_000_000,
        b'{"format":"' + b"x" * 1_000_000 + b'"}',
    ],
    ids=lambda data: f"{bytes(data[:12])!r}+{len(data)}",
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestError) as caught:
        load_manifest(data, path="m")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("plain", "doubled"),
    [
        (b'"snapshot":1', b'"snapshot":2,"snapshot":1'),
        (b'"number":0', b'"number":0,"number":0'),
        (b'"rows":7', b'"rows":8,"\\u0072ows":7'),
        (b'"deep":true', b'"deep":false,"deep":true'),
        (b'"itemsize":3', b'"itemsize":4,"itemsize":3'),
    ],
)
def test_keys_given_twice_are_refused(plain: bytes, doubled: bytes) -> None:
    data = encode_manifest(THREE)
    assert data.count(plain) == 1
    with pytest.raises(ManifestError, match="is given twice"):
        load_manifest(data.replace(plain, doubled), path="m")


def nested(depth: int) -> Any:
    return [] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"a": (1, 2)}, TypeError),
        ({1: "a"}, TypeError),
        ({"a": np.int64(1)}, TypeError),
        ({"a": b"x"}, TypeError),
        ([], TypeError),
        ({"a": [float("inf")]}, ValueError),
        ({"a": 2**63}, ValueError),
        ({"a": "\ud800"}, ValueError),
        ({"\ud800": 1}, ValueError),
        ({"a": nested(32)}, ValueError),
        ({"a": "x" * 2**20}, ValueError),
    ],
)
def test_metadata_that_would_not_come_back_is_refused(metadata: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_manifest(StreamManifest(PLAIN, (PLAIN,), (), 1, metadata))


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
plain = st.recursive(
    scalars.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), plain, max_size=3))
def test_metadata_come_back(metadata: dict[str, Any]) -> None:
    assert load_manifest(encode_manifest(manifest(m=metadata)), path="m").metadata == {"m": metadata}


def test_one_file_may_hold_several_shards_but_not_twice_the_same_bytes() -> None:
    def part(number: int, byte_offset: int, **changes: Any) -> ShardEntry:
        common: dict[str, Any] = {"file": "corpus.bin", "checksums": "corpus.crc32c", "checksum_seed": 1, "bytes": 1000}
        return shard(number, 10, **(common | {"byte_offset": byte_offset} | changes))

    both = manifest(part(0, 30), part(1, 0))
    assert load_manifest(encode_manifest(both), path="m") == both
    with pytest.raises(ManifestError, match=r"overlap in the file 'corpus\.bin', at byte 29"):
        manifest(part(0, 29), part(1, 0))
    for change in ({"bytes": 999}, {"checksums": "b"}, {"checksum_seed": 2}):
        with pytest.raises(ManifestError, match=r"'corpus\.bin' differently"):
            manifest(part(0, 30), part(1, 0, **change))


def test_sums_stay_in_63_bits() -> None:
    largest = shard(0, 2**62, PLAIN, bytes=2**63 - 1)
    with pytest.raises(ManifestError, match="too few"):
        manifest(largest, schema=PLAIN)
    half = Schema.of("u1")
    assert manifest(shard(0, 2**62, half), shard(1, 2**62 - 1, half), schema=half).num_rows == 2**63 - 1
    with pytest.raises(ManifestError, match="63 bits"):
        manifest(shard(0, 2**62, half), shard(1, 2**62, half), schema=half)


def test_a_manifest_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(ManifestError, match="at most 67108864"):
        load_manifest(bytes(MAX_MANIFEST_BYTES + 1), path="m")


numbers = st.sampled_from(
    [-1, 0, 1, 2, 3, 5, 7, 10, 1000, 4096, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**70, 1.0, 0.5, True]
)
values = (
    numbers
    | st.none()
    | st.text(max_size=4)
    | st.sampled_from([[], {}, "..", "|O", "<u2", "tokens", [1], [[]], "0" * 64])
)


@given(st.data())
def test_any_mutation_is_a_manifest_or_an_error(data: st.DataObject) -> None:
    document = json.loads(encode_manifest(THREE))
    for _ in range(data.draw(st.integers(1, 3))):
        place = document
        while True:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = copy.deepcopy(data.draw(values))
            break
    try:
        loaded = load_manifest(json.dumps(document).encode(), path="m")
    except (ManifestError, UnsafePathError):
        return
    assert load_manifest(encode_manifest(loaded), path="m") == loaded
    assert isinstance(loaded, StreamManifest)
    for entry in loaded.shards:
        assert entry.files[0].byte_offset + entry.rows * loaded.schema.row_bytes <= entry.files[0].bytes < 2**63


@given(st.integers(0, len(encode_manifest(THREE)) * 8 - 1))
def test_a_flipped_bit_is_noticed_or_outside_of_what_is_read(bit: int) -> None:
    data = bytearray(encode_manifest(THREE))
    data[bit // 8] ^= 1 << bit % 8
    try:
        loaded = load_manifest(bytes(data), path="m")
    except GuideLoomError:
        return
    assert loaded.fingerprint == THREE.fingerprint


def test_numbers_in_a_manifest_allocate_nothing() -> None:
    data = changed(put("schema", "fields", 0, "shape", [2**40, 2**20]))
    with pytest.raises(ManifestError, match="shape"):
        load_manifest(data, path="m")
    tracemalloc.start()
    with pytest.raises(ManifestError, match="shape"):
        load_manifest(data, path="m")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_ten_thousand_shards_are_read_in_a_moment() -> None:
    many = manifest(*(shard(number, 1000) for number in range(10_000)))
    data = encode_manifest(many)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        loaded = load_manifest(data, path="m")
        times.append(time.perf_counter() - start)
    assert loaded == many
    assert min(times) < 0.3  # 25 ms on the machine that it was written on


@pytest.mark.parametrize("filler", [b'{"number":0,"rows":0,"files":[]}', b'{"number":0,"rows":0,"files":[[]]}'])
def test_hostile_manifests_take_bounded_time_and_memory(filler: bytes) -> None:
    head, tail = encode_manifest(manifest(shard(0, 1))).split(b'"shards":[', 1)
    data = head + b'"shards":[' + b",".join([filler] * 100_000) + b"," + tail
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(ManifestError):
        load_manifest(data, path="m")
    elapsed = time.perf_counter() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert elapsed < 5
    assert peak < 4 * len(data) + 2**26
