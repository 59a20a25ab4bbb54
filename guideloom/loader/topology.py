"""Which rank this process is, when the user does not say."""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger("guideloom")

# Launcher, and its variables for rank and world size. Slurm's are those of a step that srun started: a batch script
# itself has a task count too, but is one process.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
)


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else of ``torch.distributed``, else of the launcher, else 0 and 1.

    Raises
    ------
    ValueError
        If only one of the two is given, or the launcher's variables are not numbers.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise ValueError("give both rank and world_size, or neither")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for launcher, rank_name, size_name in _LAUNCHERS:
        texts = os.environ.get(rank_name), os.environ.get(size_name)
        if texts[0] is None or texts[1] is None:
            continue
        try:
            found = int(texts[0]), int(texts[1])
        except ValueError:
            raise ValueError(f"{rank_name}={texts[0]!r} and {size_name}={texts[1]!r} are not numbers") from None
        logger.info("rank %d of %d, from the environment of %s", *found, launcher)
        return found
    return 0, 1
