"""Datasets whose samples are recognised, and runs over them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import guideloom as gl
from tests.datasets.opened import in_memory
from tests.streams import counted

WINDOW = 4


def dataset_of(num_samples: int, lengths: list[int] | None = None) -> gl.StreamDataset:
    """A dataset of so many windows, in shards that are no multiple of them; window i begins with token 4 i."""
    num_elements = num_samples * WINDOW + 3
    if lengths is None:
        cut = num_elements // 3
        lengths = [cut, 0, 1, num_elements - cut - 1]
    return in_memory(counted(lengths, "<i4"), window=WINDOW)


def ids(batch: Mapping[str, Any]) -> list[int]:
    """Return the samples in a batch, once its content is found right."""
    tokens = batch["tokens"]
    rows = int(batch["num_valid"]) if "num_valid" in batch else len(tokens)
    found = [int(first) // WINDOW for first in tokens[:rows, 0]]
    assert tokens[:rows].tolist() == [list(range(i * WINDOW, i * WINDOW + WINDOW)) for i in found]
    assert not tokens[rows:].any()
    return found


def take(batches: Iterable[Mapping[str, Any]], count: int) -> list[list[int]]:
    """Return the samples of the next so many batches."""
    iterator = iter(batches)
    return [ids(next(iterator)) for _ in range(count)]


def epochs(dataset: gl.StreamDataset, count: int, **options: Any) -> list[list[list[int]]]:
    """Return the samples of each batch of whole epochs of a fresh loader."""
    with contextlib.closing(gl.Loader(dataset, **options)) as loader:
        return [[ids(batch) for batch in loader] for _ in range(count)]
