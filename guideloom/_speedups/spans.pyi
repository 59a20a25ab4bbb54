from guideloom._typing import Int32Array, Int64Array, UInt8Array, UInt32Array

DISORDER: int
BAD_PAYLOAD: int
UNEVEN: int

def checksum_spans(rows: UInt32Array, payload: UInt8Array, *, file_seed: int, first_span: int) -> None: ...
def find_spans(
    rows: UInt32Array,
    position: Int64Array,
    num_rows: Int64Array,
    num_before: Int64Array,
    block_start: Int64Array,
    begin: Int64Array,
    length: Int64Array,
    num_elements: Int64Array,
    payload_base: Int64Array,
    payload_bytes: Int64Array,
    status: Int32Array,
    detail: Int64Array,
    found: Int64Array,
) -> None: ...
def check_payloads(
    rows: UInt32Array,
    position: Int64Array,
    lowest: Int64Array,
    found: Int64Array,
    seed: UInt32Array,
    payload: Int64Array,
    item_bytes: int,
    verify: bool,
    pieces: Int32Array,
    status: Int32Array,
    detail: Int64Array,
) -> None: ...
def lay_out_spans(
    rows: UInt32Array,
    position: Int64Array,
    num_before: Int64Array,
    block_start: Int64Array,
    begin: Int64Array,
    length: Int64Array,
    shard_start: Int64Array,
    element: Int64Array,
    found: Int64Array,
    payload: Int64Array,
    batch: Int32Array,
    window: int,
    item_bytes: int,
    status: Int32Array,
    num_windows: Int64Array,
    num_spans: Int64Array,
    columns: Int64Array,
    values: Int64Array,
) -> None: ...
