"""Who reads what; that every sample is dealt once, tests/loader shows."""

from __future__ import annotations

import tracemalloc

from guideloom.sampling.partition import Partition


def test_a_batch_of_more_than_there_is_takes_no_memory_for_the_rest() -> None:
    tracemalloc.start()
    try:
        rows = Partition(batch_size=10**7).rows(0, 0, 1, length=17)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.positions.tolist() == list(range(17))
    assert (rows.valid, rows.total) == ([17], [17])
    assert peak < 2**20
