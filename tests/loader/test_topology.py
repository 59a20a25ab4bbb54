"""Which rank this is, when nobody says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import guideloom as gl
from guideloom.loader.topology import rank_and_world_size
from tests.loader.samples import dataset_of, ids

VARIABLES = (
    "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_alone_without_a_launcher() -> None:
    assert rank_and_world_size(None, None) == (0, 1)


def test_what_is_said_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_and_world_size(2, 4) == (2, 4)
    assert rank_and_world_size(0, 1) == (0, 1)


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
)
def test_launchers_are_known(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    monkeypatch.setenv(rank, "3")
    assert rank_and_world_size(None, None) == (0, 1)
    monkeypatch.setenv(size, "5")
    assert rank_and_world_size(None, None) == (3, 5)


def test_torchrun_comes_before_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchrun under srun: the variables of the inner launcher count."""
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    assert rank_and_world_size(None, None) == (5, 8)


def test_a_batch_script_without_srun_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "64")
    assert rank_and_world_size(None, None) == (0, 1)


def test_half_an_answer_or_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, size in ((0, None), (None, 1)):
        with pytest.raises(ValueError, match="both rank and world_size, or neither"):
            rank_and_world_size(rank, size)
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK='first'"):
        rank_and_world_size(None, None)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match=r"rank must be in 0 \.\. 1"):
        gl.Loader(dataset_of(4))


def test_loaders_take_it_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for make in (gl.Loader, gl.StatefulDataLoader):
        with make(dataset_of(8), 2) as loader:
            assert [ids(batch) for batch in loader] == [[2, 3], [6, 7]]


DISTRIBUTED = """
import os, sys
os.environ.update(RANK="0", WORLD_SIZE="9")
import torch.distributed as dist
from guideloom.loader.topology import rank_and_world_size
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
assert rank_and_world_size(None, None) == (0, 1)
dist.destroy_process_group()
assert rank_and_world_size(None, None) == (0, 9)
"""


def test_torch_distributed_comes_first(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DISTRIBUTED, str(tmp_path / "store")], check=True, timeout=60)
