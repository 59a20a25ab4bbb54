"""Those who read windows of a stream in random order, each called in a fresh process by `read_windows`."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.clock import Clock, Timing

BATCH_SIZE = 32
SEED = 17

# What one call of the yardstick reads, where a run is not bounded: some milliseconds of work.
_CALL_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Workload:
    """What every contender reads.

    Parameters
    ----------
    path : str
        Folder of the stream.
    files : list of str
        Its data files.
    raw : str
        One file of the same tokens, for those that cannot read shards.
    num_tokens : int
        Tokens of the stream, int32.
    window, stride : int
        Tokens of a window, and from one window to the next.
    """

    path: str
    files: list[str]
    raw: str
    num_tokens: int
    window: int
    stride: int

    @property
    def num_windows(self) -> int:
        """Windows of an epoch, which ends with the last full batch."""
        windows = (self.num_tokens - self.window) // self.stride + 1
        return windows // BATCH_SIZE * BATCH_SIZE

    @property
    def window_bytes(self) -> int:
        """Bytes of a window."""
        return 4 * self.window


def read_windows(contender: str, workload: dict[str, Any], timing: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Let a contender read windows for a while.

    Parameters
    ----------
    contender : str
        One of `CONTENDERS`.
    workload, timing : dict
        A `Workload` and a `Timing`, as plain JSON.
    **options
        The contender's own.

    Returns
    -------
    dict
        As `Clock.result`: windows a second, with the private memory beyond that of numpy, and of torch where the
        contender needs it.
    """
    function, *modules = CONTENDERS[contender]
    for module in modules:
        import_module(module)
    work, clock = Workload(**workload), Clock(Timing(**timing))
    _check(work, function(work, clock, **options))
    return clock.result(work.window_bytes)


# Each contender starts the clock when it is ready to read, stops when the clock says so, and returns its last batch.


def loader(work: Workload, clock: Clock, *, verify: bool, prefetch: int | None = None) -> Any:
    """Read by `guideloom.Loader`."""
    import guideloom as gl

    return _drain(gl.Loader, work, clock, verify, prefetch)


def torch_loader(work: Workload, clock: Clock, *, verify: bool, prefetch: int | None = None) -> Any:
    """Read by `guideloom.StatefulDataLoader`."""
    import guideloom as gl

    return _drain(gl.StatefulDataLoader, work, clock, verify, prefetch)


def async_reader(work: Workload, clock: Clock, *, verify: bool) -> Any:
    """Read by ``async for`` from an async reader, on the kind of loop that the loaders have."""
    dataset = _open(work, verify)

    async def main() -> Any:
        epoch = 0
        async with dataset.async_reader() as reader:
            clock.start()
            while True:
                batches = reader.batches(BATCH_SIZE, shuffle="global", seed=SEED, epoch=epoch, drop_last=True)
                async with aclosing(batches):
                    async for batch in batches:
                        if clock.add(len(batch["tokens"])):
                            return batch["tokens"]
                epoch += 1

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


def c_pread(work: Workload, clock: Clock, *, library: str, num_threads: int) -> Any:
    """Read by ``pread`` in C, without a loader: what the machine gives."""
    import numpy as np

    from benchmarks.yardstick import Yardstick

    windows = np.random.default_rng(SEED).permutation(work.num_windows)
    offsets = windows.astype(np.int64) * (4 * work.stride)
    at_once = len(offsets) if clock.bounded else max(BATCH_SIZE, _CALL_BYTES // work.window_bytes)
    with Yardstick(library, work.files, work.window_bytes, num_threads) as yardstick:
        clock.start()
        while True:
            for start in range(0, len(offsets), at_once):
                part = offsets[start : start + at_once]
                yardstick.read(part)
                if clock.add(len(part)):
                    read = yardstick.buffers.view("<i4")
                    return read[read[:, 0] >= 0]


def numpy_take(work: Workload, clock: Clock) -> Any:
    """Gather from a memory map of one file into one batch, used again and again."""
    import numpy as np

    windows = np.memmap(work.raw, "<i4", "r")[: work.num_tokens // work.window * work.window].reshape(-1, work.window)
    batch = np.empty((BATCH_SIZE, work.window), "<i4")
    generator = np.random.default_rng(SEED)
    clock.start()
    while True:
        order = generator.permutation(work.num_windows)
        for start in range(0, len(order), BATCH_SIZE):
            # Another mode than "raise" writes to `out` without a copy in between.
            np.take(windows, order[start : start + BATCH_SIZE], axis=0, out=batch, mode="clip")
            if clock.add(BATCH_SIZE):
                return batch


def torch_memmap(work: Workload, clock: Clock) -> Any:
    """Read by torch's own loader over a memory map of one file, without workers, which would make it slower."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Windows(Dataset[torch.Tensor]):
        def __init__(self) -> None:
            self.tokens = np.memmap(work.raw, "<i4", "r")

        def __len__(self) -> int:
            return work.num_windows

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.from_numpy(np.array(self.tokens[index * work.window : (index + 1) * work.window]))

    clock.start()
    batches = DataLoader(Windows(), BATCH_SIZE, shuffle=True, drop_last=True)
    while True:
        for batch in batches:
            if clock.add(len(batch)):
                return batch


def _drain(loader_class: Any, work: Workload, clock: Clock, verify: bool, prefetch: int | None) -> Any:
    with loader_class(
        _open(work, verify),
        BATCH_SIZE,
        shuffle="global",
        seed=SEED,
        rank=0,
        world_size=1,
        prefetch=prefetch,
        drop_last=True,
    ) as batches:
        clock.start()
        while True:
            for batch in batches:
                if clock.add(len(batch["tokens"])):
                    return batch["tokens"]


def _open(work: Workload, verify: bool) -> Any:
    import guideloom as gl

    return gl.open_dataset(work.path, window=work.window, stride=work.stride, verify=verify)


def _check(work: Workload, batch: Any) -> None:
    """Raise an error unless every row is a window of the stream, in which token i is i."""
    import numpy as np

    tokens = np.asarray(batch)
    first = tokens[:, :1]
    expected = first + np.arange(work.window)
    if not len(tokens) or (first % work.stride).any() or not np.array_equal(tokens, expected):
        raise RuntimeError(f"what was read are not windows of {work.path}: {tokens}")


# Each with the modules whose memory is not its own.
CONTENDERS: dict[str, tuple[Callable[..., Any], *tuple[str, ...]]] = {
    "loader": (loader, "numpy"),
    "torch_loader": (torch_loader, "numpy", "torch.utils.data"),
    "async_reader": (async_reader, "numpy"),
    "c_pread": (c_pread, "numpy"),
    "numpy_take": (numpy_take, "numpy"),
    "torch_memmap": (torch_memmap, "numpy", "torch.utils.data"),
}
