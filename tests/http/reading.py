"""Reads from servers that misbehave, and what comes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from guideloom.backends import HTTPBackend, ReadBackend, RetryingBackend, RetryPolicy
from guideloom.errors import RangesError
from guideloom.ranges import ByteRanges
from tests.http.misbehaving import Answer, MisbehavingServer, Request, proper

DATA = np.random.default_rng(3).bytes(65_536)
FILES = {"a.bin": DATA, "b.bin": DATA[::-1]}
WHOLE = ("a.bin", 0, len(DATA))

# Retries without the waiting.
QUICK = RetryPolicy(first_delay_seconds=0.001, max_delay_seconds=0.01)

Wanted = Sequence[tuple[str, int, int]]


async def read(backend: ReadBackend, *wanted: tuple[str, int, int]) -> list[bytes]:
    """Read ranges of an open backend."""
    buffers = [bytearray(length) for _, _, length in wanted]
    await backend.read_ranges(ByteRanges.of(wanted), [memoryview(buffer) for buffer in buffers])
    return [bytes(buffer) for buffer in buffers]


async def failure(backend: ReadBackend, *wanted: tuple[str, int, int]) -> Any:
    """Return the error of the first range that failed."""
    try:
        await read(backend, *wanted)
    except RangesError as error:
        return error.failures[min(error.failures)]
    raise AssertionError("nothing failed")


def run(backend: ReadBackend, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an async function with a backend that is open meanwhile."""

    async def main() -> Any:
        await backend.open()
        try:
            return await function(backend, *arguments)
        finally:
            await backend.close()

    return asyncio.run(main())


def retrying(server: MisbehavingServer, policy: RetryPolicy = QUICK, **options: Any) -> RetryingBackend:
    """Return a backend that retries quickly."""
    return RetryingBackend(HTTPBackend(server.url, **options), policy)


def first(count: int, answer: Callable[[Request], Answer | None]) -> Callable[[Request], Answer | None]:
    """Misbehave for so many requests, then no more."""
    left = count

    def act(request: Request) -> Answer | None:
        nonlocal left
        left -= 1
        return answer(request) if left >= 0 else None

    return act


def faults(seed: int, files: Mapping[str, bytes]) -> Callable[[Request], Answer | None]:
    """Cut one body of ten, and answer one request of ten with an error or a reset."""
    generator = random.Random(seed)

    def act(request: Request) -> Answer | None:
        kind = generator.random()
        answer = proper(files, request)
        if kind < 0.1:
            then: Any = generator.choice(["close", "reset"])
            return replace(answer, sent=generator.randrange(len(answer.body) + 1), then=then)
        if kind < 0.15:
            return Answer(generator.choice([500, 502, 504, 408]))
        if kind < 0.2:
            return replace(answer, sent=0, then="reset")
        return None

    return act
