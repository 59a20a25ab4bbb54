"""The state of a loader: a position, and proof that it means the same samples here."""

from __future__ import annotations

from collections.abc import Sequence
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
    if not _is_state(plain):
        hint = next((f"; give it [{key!r}] alone" for key, part in plain.items() if _is_state(part)), "")
        found = _excerpt(plain.get("format"))
        raise StateError(f"this is no loader state: its format is {found}, not {STATE_FORMAT!r}{hint}")
    version = plain.get("version")
    if type(version) is not int or version != STATE_VERSION:
        raise StateError(f"the loader state has version {_excerpt(version)}, and this GuideLoom reads {STATE_VERSION}")
    try:
        state = msgspec.convert(plain, LoaderState)
        checksum = _checksum(plain)
    except Exception as error:  # a checkpoint may hold anything: half a surrogate pair, a number that is NumPy's
        raise StateError(f"the loader state is damaged: {str(error)[:500]}") from error
    if state.crc32c != checksum:
        raise StateError(f"the loader state is damaged: its checksum is {checksum:#010x}, not {state.crc32c:#010x}")
    if not _agrees_with_itself(state):
        raise StateError("the loader state contradicts itself: its segments do not lead to its position")
    return state


def segments_to(
    segments: Sequence[Segment], epoch: int, step: int, position: int, *, world_size: int, batch_size: int
) -> list[Segment]:
    """Return the segments that lie before a position, and one that begins there if the topology changes."""
    kept = [segment for segment in segments if (segment.epoch, segment.step) < (epoch, step)]
    if kept and (kept[-1].world_size, kept[-1].batch_size) == (world_size, batch_size):
        return kept
    return [*kept, Segment(epoch, step, position, world_size, batch_size)]


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
            "Open the dataset and make the loader as they were when the state was saved, or start without "
            "load_state_dict",
            differences=differences,
        )


def probe(order: Order, epoch: int, position: int) -> int:
    """Return a hash of the samples at and after a position, as the order gives them here."""
    stop = min(position + PROBE_SAMPLES, order.length)
    samples = order.samples(epoch, np.arange(position, stop, dtype=np.int64))
    return crc32c(samples.astype("<i8").view(np.uint8))


def _is_state(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    found = part.get("format")
    return isinstance(found, str) and found == STATE_FORMAT


def _excerpt(value: Any) -> str:
    """Return a value for a message, unless it may be deep or long."""
    return repr(value)[:80] if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _checksum(plain: dict[str, Any]) -> int:
    content = {key: value for key, value in plain.items() if key != "crc32c"}
    return crc32c(msgspec.json.encode(content, order="sorted"))


def _agrees_with_itself(state: LoaderState) -> bool:
    """Whether the position is one of the epoch, and each segment leads to the next one and the last one to it."""
    if not 0 <= state.epoch < 2**64 or not 0 <= state.position < max(state.dataset.samples, 1) or not state.segments:
        return False
    if min(min(segment.world_size, segment.batch_size) for segment in state.segments) < 1:
        return False
    points = [(s.epoch, s.step, s.position) for s in state.segments] + [(state.epoch, state.step, state.position)]
    for segment, (epoch, step, position) in zip(state.segments, points[1:], strict=True):
        first, start = (segment.step, segment.position) if segment.epoch == epoch else (0, 0)
        expected = start + (step - first) * segment.world_size * segment.batch_size
        if epoch < segment.epoch or step < first or position != expected:
            return False
    return points[0] == (0, 0, 0)
