from collections.abc import Sequence

from guideloom._typing import Int32Array, Int64Array, UInt8Array, UInt32Array

DAMAGED_ROW: int
CONTRADICTION: int
OVERFLOW: int

def document_checksums(data: UInt8Array, ends: Int64Array, *, file_seed: int, first: int, out: UInt32Array) -> None: ...
def row_checksums(rows: UInt8Array, *, file_seed: int, first: int, out: UInt32Array) -> None: ...
def locate(
    address: Int64Array,
    record: Int64Array,
    file: Int32Array,
    data_bytes: Int64Array,
    seeds: UInt32Array,
    row_bytes: int,
    section_bytes: Int64Array,
    delivered_bytes: Int64Array,
    compressed: bool,
    most_bytes: int,
    offset: Int64Array,
    length: Int64Array,
    decoded: Int64Array,
    size: Int64Array,
    checksum: UInt32Array,
    counts: Int64Array,
    status: Int32Array,
    detail: Int64Array,
) -> None: ...
def plan_arrays(
    counts: Int64Array,
    bounds: Int64Array,
    total: Int64Array,
    batch: Int32Array,
    element: Int64Array,
    offsets: Int64Array,
) -> None: ...
def lay_out(
    source: UInt8Array,
    begin: Int64Array,
    counts: Int64Array,
    element: Int64Array,
    section_bytes: Int64Array,
    fields: Sequence[tuple[int, int, int, int, int, int]],
    base: Int64Array,
    status: Int32Array,
    detail: Int64Array,
) -> None: ...
def join_arrays(address: Int64Array, offsets: Int64Array, section_bytes: Int64Array, out: UInt8Array) -> int: ...
def pad_rows(
    values: UInt8Array, offsets: Int64Array, element_bytes: int, fill: UInt8Array, out: UInt8Array
) -> None: ...
