from guideloom._typing import Int32Array, Int64Array

def count_pieces(samples: Int64Array, window: int, stride: int, offset: int, starts: Int64Array) -> int: ...
def plan_windows(
    samples: Int64Array,
    bounds: Int64Array,
    window: int,
    stride: int,
    offset: int,
    starts: Int64Array,
    row_bytes: int,
    byte_offsets: Int64Array,
    sample: Int32Array,
    file: Int32Array,
    byte_offset: Int64Array,
    length: Int64Array,
    batch: Int32Array,
    element: Int64Array,
) -> int: ...
def group_neighbours(
    file: Int32Array, offset: Int64Array, length: Int64Array, max_gap: int, max_length: int, group: Int64Array
) -> int: ...
