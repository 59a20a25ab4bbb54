"""The state of a loader: a position, and proof that it means the same samples here."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from guideloom._speedups.crc32c import crc32c
from guideloom.errors import StateError, StateMismatchError
from guideloom.sampling.order import Order
from guideloom.sampling.permutation import SHUFFLE_VERSION

STATE_FORMAT = "guideloom-loader"
STATE_VERSION = 0

# So many samples from the saved position on are hashed into the state.
PROBE_SAMPLES = 64


class Segment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """From which step on which topology holds.

    Parameters
    ----------
    epoch, step, position : int
        Where the segment begins.
    world_size, batch_size : int
        What it is dealt out by, until the next segment begins.
    """

    epoch: int
    step: int
    position: int
    world_size: int
    batch_size: int


class DatasetState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the samples are numbers of."""

    kind: str
    fingerprint: str
    snapshot: int
    samples: int
    window: int
    stride: int
    offset: int


class OrderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which order the samples come in, with the hash of the next ones."""

    shuffle: str | None
    version: int
    seed: str
    probe: int


class LoaderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a loader, as `state_dict` gives it; the same on every rank."""

    format: str
    version: int
    dataset: DatasetState
    order: OrderState
    epoch: int
    step: int
    position: int
    segments: list[Segment]
    crc32c: int = 0


def encode_state(state: LoaderState) -> dict[str, Any]:
    """Return a state as plain JSON types, with its checksum."""
    plain: dict[str, Any] = msgspec.to_builtins(state)
    plain["crc32c"] = _checksum(plain)
    return plain


def decode_state(plain: Any) -> LoaderState:
    """Return the state that a dictionary holds.

    Raises
    ------
    StateError
        If it is damaged, of another version, or no state.
    """
    if not isinstance(plain, dict):
        raise StateError(f"a loader state is a dict, not {type(plain).__name__}")
    if plain.get("format") != STATE_FORMAT:
        raise StateError(f"this is no loader state: its format is {plain.get('format')!r}, not {STATE_FORMAT!r}")
    if plain.get("version") != STATE_VERSION:
        raise StateError(
            f"the loader state has version {plain.get('version')!r}, and this GuideLoom reads {STATE_VERSION}"
        )
    try:
        state = msgspec.convert(plain, LoaderState)
    except (msgspec.ValidationError, RecursionError) as error:
        raise StateError(f"the loader state is damaged: {error}") from error
    found = _checksum(plain)
    if state.crc32c != found:
        raise StateError(f"the loader state is damaged: its checksum is {found:#010x}, not {state.crc32c:#010x}")
    numbers = [state.epoch, state.step, state.position, *(n for segment in state.segments for n in _numbers(segment))]
    if min(numbers) < 0 or not state.segments or state.position > state.dataset.samples:
        raise StateError("the loader state contradicts itself: a position is negative or past the end")
    return state


def check_state(state: LoaderState, dataset: DatasetState, order: Order) -> None:
    """Raise ``StateMismatchError`` with every difference unless a state belongs to this dataset and order."""
    here = OrderState(order.mode, SHUFFLE_VERSION, str(order.seed), probe(order, state.epoch, state.position))
    differences: dict[str, tuple[Any, Any]] = {}
    for saved, present, names in (
        (state.dataset, dataset, ("kind", "fingerprint", "samples", "window", "stride", "offset")),
        (state.order, here, ("shuffle", "version", "seed", "probe")),
    ):
        for name in names:
            if getattr(saved, name) != getattr(present, name):
                differences[name] = getattr(saved, name), getattr(present, name)
    if len(differences) > 1:
        differences.pop("probe", None)  # it differs because something else does
    if differences:
        lines = "".join(f"\n  {name}: saved {saved!r}, here {here!r}" for name, (saved, here) in differences.items())
        raise StateMismatchError(
            f"the state belongs to another run; nothing was changed.{lines}\n"
            "Open the dataset as it was when the state was saved, or start without load_state_dict",
            differences=differences,
        )


def probe(order: Order, epoch: int, position: int) -> int:
    """Return a hash of the samples at and after a position, as the order gives them here."""
    stop = min(position + PROBE_SAMPLES, order.length)
    samples = order.samples(epoch, np.arange(position, stop, dtype=np.int64))
    return crc32c(samples.astype("<i8").view(np.uint8))


def _checksum(plain: dict[str, Any]) -> int:
    content = {key: value for key, value in plain.items() if key != "crc32c"}
    return crc32c(msgspec.json.encode(content, order="sorted"))


def _numbers(segment: Segment) -> tuple[int, int, int, int, int]:
    return segment.epoch, segment.step, segment.position, segment.world_size - 1, segment.batch_size - 1
