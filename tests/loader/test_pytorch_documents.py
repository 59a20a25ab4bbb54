"""Documents as tensors: padded, nested, by sample; with unsigned tokens widened, and exact resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import guideloom as gl
from guideloom.pytorch import Nested, Padded, nested_tensor, padded_tensor
from tests.documents import document_files, opened

LENGTHS = [3, 0, 5, 1, 1, 2, 8]
DOCUMENTS = [{"ids": np.arange(n) + 100 * i, "mask": np.ones(n // 2, "u1")} for i, n in enumerate(LENGTHS)]
ENCODING = gl.formats.NumpyArrays({"ids": "<u2", "mask": "u1"})


@pytest.fixture
def dataset() -> gl.DocumentDataset:
    return opened(document_files([DOCUMENTS[:2], DOCUMENTS[2:]], ENCODING))


def loader_of(dataset: gl.DocumentDataset, batch_size: int = 3, **options: Any) -> gl.StatefulDataLoader:
    return gl.StatefulDataLoader(dataset, batch_size, **{"rank": 0, "world_size": 1, **options})


def test_padded_by_default_with_the_true_lengths(dataset: gl.DocumentDataset) -> None:
    with loader_of(dataset) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["ids", "ids_lengths", "mask", "mask_lengths"]
    assert batch["ids"].dtype == torch.int64
    assert batch["ids"].tolist() == [[0, 1, 2, 0, 0], [0] * 5, [200, 201, 202, 203, 204]]
    assert batch["ids_lengths"].tolist() == [3, 0, 5]
    assert batch["mask"].dtype == torch.uint8
    assert batch["mask"].tolist() == [[1, 0], [0, 0], [1, 1]]
    torch.nn.Embedding(300, 2)(batch["ids"])


def test_padding_takes_a_fill_by_field_and_a_length(dataset: gl.DocumentDataset) -> None:
    with loader_of(dataset, collate_fn=Padded({"ids": -100}, length=4)) as loader:
        batch = next(iter(loader))
    assert batch["ids"].tolist() == [[0, 1, 2, -100], [-100] * 4, [200, 201, 202, 203]]
    assert batch["ids_lengths"].tolist() == [3, 0, 4]
    assert batch["mask"].shape == (3, 4)


def test_nested_tensors_share_the_memory_of_the_batch(dataset: gl.DocumentDataset) -> None:
    with loader_of(dataset, collate_fn=Nested()) as loader:
        batch = next(iter(loader))
    assert batch["ids"].layout == torch.jagged
    assert [row.tolist() for row in batch["ids"].unbind()] == [[0, 1, 2], [], [200, 201, 202, 203, 204]]
    jagged = gl.Jagged(np.arange(5.0), np.array([0, 2, 5]))
    tensor = nested_tensor(jagged)
    jagged.values[0] = 7
    assert tensor.values()[0] == 7
    values, lengths = padded_tensor(jagged, -1)
    assert values.tolist() == [[7, 1, -1], [2, 3, 4]]
    assert lengths.tolist() == [2, 3]


def test_a_collate_function_gets_samples(dataset: gl.DocumentDataset) -> None:
    with loader_of(dataset, collate_fn=lambda samples: [sample["ids"].tolist() for sample in samples]) as loader:
        assert [row for batch in loader for row in batch] == [document["ids"].tolist() for document in DOCUMENTS]


def test_ranks_pad_the_last_step_with_empty_documents(dataset: gl.DocumentDataset) -> None:
    seen = []
    for rank in range(3):
        with loader_of(dataset, 2, rank=rank, world_size=3) as loader:
            batches = list(loader)
        assert len(batches) == 2
        for batch in batches:
            valid = int(batch["num_valid"])
            assert batch["ids_lengths"][valid:].sum() == 0
            seen += batch["ids_lengths"][:valid].tolist()
    assert sorted(seen) == sorted(LENGTHS)


def test_documents_that_are_no_arrays_come_as_lists() -> None:
    dataset = opened(document_files([["a", "b", "c"]], gl.formats.Text()))
    with loader_of(dataset, 2) as loader:
        assert list(loader) == [["a", "b"], ["c"]]
    with loader_of(dataset, 2, collate_fn="".join) as loader:
        assert list(loader) == ["ab", "c"]
    with pytest.raises(ValueError, match=r"Padded\(0, None\) collates numeric documents"):
        loader_of(dataset, 2, collate_fn=Padded())


def test_resume_is_exact(dataset: gl.DocumentDataset) -> None:
    def ids(batch: Any) -> Any:
        return batch["ids"].tolist()

    options: dict[str, Any] = {"shuffle": True, "seed": 3}
    with loader_of(dataset, 2, **options) as loader:
        whole = [ids(batch) for batch in loader]
    for stop in range(len(whole)):
        with loader_of(dataset, 2, **options) as loader:
            iterator = iter(loader)
            assert [ids(next(iterator)) for _ in range(stop)] == whole[:stop]
            state = loader.state_dict()
        with loader_of(dataset, 2, **options) as loader:
            loader.load_state_dict(state)
            assert [ids(batch) for batch in loader] == whole[stop:]
    other = opened(document_files([DOCUMENTS], ENCODING))
    with loader_of(other, 2, **options) as loader, pytest.raises(gl.StateMismatchError, match="fingerprint"):
        loader.load_state_dict(state)
