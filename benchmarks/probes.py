"""Figures of single things, each taken in a fresh process: the first batch, an index of the shuffle, memory."""

import time
from typing import Any

from benchmarks.contenders import BATCH_SIZE, SEED, Workload, read_windows

_PREFETCH = 64


def first_batch(path: str, window: int, *, with_torch: bool, resume: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return how long the first batch takes, in milliseconds, from the end of the imports.

    Parameters
    ----------
    path : str
        Folder of a stream.
    window : int
        Tokens of a window.
    with_torch : bool
        Whether `guideloom.StatefulDataLoader` reads it, instead of `guideloom.Loader`.
    resume : dict, optional
        What `half_way` returned, to go on from there.
    """
    before = time.perf_counter()
    import guideloom as gl

    loader_class: Any = gl.StatefulDataLoader if with_torch else gl.Loader
    begin = time.perf_counter()
    dataset = gl.open_dataset(path, window=window)
    loader = loader_class(dataset, BATCH_SIZE, shuffle="global", seed=SEED, drop_last=True)
    if resume is not None:
        loader.load_state_dict(resume["state"])
    batch = next(iter(loader))
    end = time.perf_counter()
    first_tokens = batch["tokens"][:, 0].tolist()
    loader.close()
    if resume is not None and first_tokens != resume["first_tokens"]:
        raise RuntimeError(f"resumed with windows that begin with {first_tokens}, not {resume['first_tokens']}")
    return {"values": [(end - begin) * 1e3], "costs": {"import ms": (begin - before) * 1e3}}


def half_way(path: str, window: int) -> dict[str, Any]:
    """Read half an epoch; return the state there, and the first token of each window of the next batch."""
    import guideloom as gl

    dataset = gl.open_dataset(path, window=window)
    with gl.Loader(dataset, BATCH_SIZE, shuffle="global", seed=SEED, drop_last=True) as loader:
        batches = iter(loader)
        for _ in range(len(loader) // 2):
            next(batches)
        state = loader.state_dict()
        return {"state": state, "first_tokens": next(batches)["tokens"][:, 0].tolist()}


def shuffled_index(length: int, at_once: int, *, seconds: float) -> dict[str, Any]:
    """Return how long an index of a shuffle takes, in nanoseconds, called for some at a time."""
    from guideloom.sampling.permutation import Permutation

    order = Permutation(length, SEED)
    starts = range(0, length - at_once + 1, at_once)
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        for start in starts[:1000]:
            order.span(start, start + at_once)
            count += at_once
    return {"values": [(time.perf_counter() - begin) / count * 1e9]}


def numpy_permutation(length: int, *, seconds: float) -> dict[str, Any]:
    """Return how long an index of numpy's own permutation takes, in nanoseconds; it makes all of them at a time."""
    import numpy as np

    generator = np.random.default_rng(SEED)
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        generator.permutation(length)
        count += length
    return {"values": [(time.perf_counter() - begin) / count * 1e9]}


def private_memory(contender: str, workload: dict[str, Any], timing: dict[str, Any]) -> dict[str, Any]:
    """Return a loader's private memory in MB, without that of numpy and torch, and the batches in flight.

    Parameters
    ----------
    contender, workload, timing
        As `read_windows` takes them.
    """
    costs = read_windows(contender, workload, timing, verify=True, prefetch=_PREFETCH)["costs"]
    in_flight = (_PREFETCH + 1) * BATCH_SIZE * Workload(**workload).window_bytes / 1e6  # one is with the consumer
    return {"values": [costs["private MB"] - in_flight], "costs": {"in flight MB": in_flight}}
