"""A read that is cancelled frees its slot, its connection and its memory, at whatever moment."""

from __future__ import annotations

import asyncio
import os
import random

from guideloom.backends import CoalescingBackend, HTTPBackend, RetryingBackend
from tests.http.misbehaving import MisbehavingServer
from tests.http.reading import DATA, FILES, QUICK, faults, read

NUM_CANCELS = 10_000 if os.environ.get("GUIDELOOM_PROVE") == "1" else 300


def test_random_cancels_leave_nothing() -> None:
    """T11: amid faults."""
    generator = random.Random(1)
    act = faults(4, FILES)

    async def main() -> None:
        http = HTTPBackend(server.url, max_concurrency=6)
        backend = CoalescingBackend(RetryingBackend(http, QUICK), max_gap_bytes=10)
        await backend.open()
        before = asyncio.all_tasks()
        for _ in range(NUM_CANCELS):
            wanted = [("a.bin", generator.randrange(60_000), generator.randrange(5000)) for _ in range(8)]
            task = asyncio.ensure_future(read(backend, *wanted))
            for _ in range(generator.randrange(60)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert asyncio.all_tasks() == before
        throttle = http._client().throttle
        assert throttle.in_flight == 0
        server.act = lambda request: None
        assert await read(backend, ("a.bin", 0, len(DATA))) == [DATA]
        await backend.close()

    with MisbehavingServer(FILES, lambda request: act(request) if generator.random() < 0.3 else None) as server:
        asyncio.run(main())
        assert server.wait_until_closed()
