from collections.abc import Sequence
from typing import Any, Self, final

from guideloom._typing import Int32Array, Int64Array, UInt8Array, UInt32Array

HAVE_PREADV: bool
TYPE_CODES: dict[str, int]
BYTES_CODE: int
DONE: int
SHORT: int
CORRUPT: int
OVERFLOW: int
PENDING: int

@final
class Buffers:
    def __new__(cls, buffers: Sequence[Any]) -> Self: ...
    def __len__(self) -> int: ...
    def fill(self, addresses: Int64Array, sizes: Int64Array) -> None: ...

@final
class Mapping:
    num_bytes: int
    @staticmethod
    def of(descriptor: int) -> Mapping | None: ...

@final
class Sources:
    def __new__(cls, room: int) -> Self: ...
    def add(self, num_pieces: int, descriptor: int, mapping: Mapping | None = None) -> None: ...

def guard_copies() -> bool: ...
def group_by_file(files: Int32Array, order: Int32Array, num_files: int) -> list[tuple[int, int, int]]: ...

@final
class ReadJob:
    num_pieces: int
    direct: bool
    checked: bool
    records: bool
    cancelled: bool
    status: Int32Array
    detail: Int64Array
    def __new__(
        cls,
        *,
        file: Int32Array,
        offset: Int64Array,
        length: Int64Array,
        batch: Int32Array,
        element: Int64Array,
        base: Int64Array,
        status: Int32Array,
        detail: Int64Array,
        row_bytes: int,
        fields: Sequence[tuple[int, int, int, int, int]],
        keep: object,
    ) -> Self: ...
    def check(
        self, block_bytes: int, file_bytes: Int64Array, seeds: UInt32Array, expected: Int64Array, keep: object
    ) -> None: ...
    def check_records(self, seeds: UInt32Array, number: Int64Array, checksum: UInt32Array, keep: object) -> None: ...
    def run(self, order: Int32Array, sources: Sources, cached_only: bool = False) -> bool: ...
    def forget(self, order: Int32Array, sources: Sources) -> None: ...
    def num_pending(self) -> int: ...
    def num_bytes(self) -> int: ...
    def num_ranges(self) -> tuple[int, int]: ...
    def fill_ranges(
        self,
        scratch_buffer: int,
        piece: Int32Array,
        file: Int32Array,
        offset: Int64Array,
        length: Int64Array,
        buffer: Int32Array,
        position: Int64Array,
    ) -> None: ...
    def finish(self, scratch: UInt8Array) -> None: ...
