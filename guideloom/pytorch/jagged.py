"""Batches of numeric documents as tensors: padded, with the true lengths, or nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from guideloom.datasets.samples import Allocate
from guideloom.formats.jagged import Jagged
from guideloom.pytorch.tensors import as_tensor

LENGTHS = "_lengths"


def padded_tensor(
    jagged: Jagged, fill: Any = 0, *, length: int | None = None, allocate: Allocate = np.empty
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a jagged array as one tensor, filled up at the end of each, and their true lengths.

    Parameters
    ----------
    jagged : Jagged
        For example a field of a batch of documents.
    fill : scalar, default 0
        What follows the elements of a row.
    length : int, optional
        Elements of each row of the tensor; longer rows are cut, and their lengths with them. By default the length of
        the longest.
    allocate : callable
        Takes a shape and a dtype and returns the array for the tensor.

    Returns
    -------
    values : tensor of shape (n, length, ...)
    lengths : int64 tensor of shape (n,)
    """
    lengths = jagged.lengths
    if length is None:
        length = int(lengths.max(initial=0))
    out = allocate((len(jagged), length, *jagged.values.shape[1:]), jagged.values.dtype)
    jagged.pad_into(out, fill)
    return as_tensor(out), torch.from_numpy(np.minimum(lengths, length))


def nested_tensor(jagged: Jagged) -> torch.Tensor:
    """Return a jagged array as a nested tensor of layout ``torch.jagged``, of shape (n, j, ...), without a copy."""
    values, offsets = as_tensor(jagged.values), torch.from_numpy(jagged.offsets)
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
    return nested


class Padded:
    """The default way to collate numeric documents: each field padded, beside it ``<field>_lengths``.

    Parameters
    ----------
    fill : scalar, or mapping of str to scalar, default 0
        What follows the elements of a row, for all fields or by field.
    length : int, optional
        Elements of each row; longer ones are cut. By default those of the longest row of a batch.
    """

    def __init__(self, fill: Any = 0, length: int | None = None) -> None:
        self.fill = fill
        self.length = length

    def __repr__(self) -> str:
        return f"Padded({self.fill!r}, {self.length})"

    def collate(self, batch: Mapping[str, Jagged], allocate: Allocate = np.empty) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch."""
        tensors: dict[str, torch.Tensor] = {}
        for name, field in batch.items():
            fill = self.fill.get(name, 0) if isinstance(self.fill, Mapping) else self.fill
            values, lengths = padded_tensor(field, fill, length=self.length, allocate=allocate)
            tensors |= {name: values, name + LENGTHS: lengths}
        return tensors


class Nested:
    """Collates numeric documents without padding: each field is a nested tensor of layout ``torch.jagged``."""

    def __repr__(self) -> str:
        return "Nested()"

    def collate(self, batch: Mapping[str, Jagged], allocate: Allocate = np.empty) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch."""
        return {name: nested_tensor(field) for name, field in batch.items()}
