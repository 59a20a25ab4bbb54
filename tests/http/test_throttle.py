"""Requests in flight follow what the server bears."""

from __future__ import annotations

import asyncio
import time

import pytest

from guideloom.backends import HTTPBackend, RetryingBackend, RetryPolicy
from guideloom.backends.throttle import SUCCESSES_PER_STEP, Throttle
from guideloom.testing import FILES
from tests.http.reading import read, run
from tests.http.servers import Nginx


def test_it_is_halved_once_a_flight_and_grows_slowly() -> None:
    """T6."""

    async def main() -> None:
        throttle = Throttle(32)
        for _ in range(10):  # ten that were under way together
            throttle.overloaded(0, 0)
        assert throttle.limit == 16
        for _ in range(6):
            throttle.overloaded(throttle.num_cuts, 0)
        assert throttle.limit == 1
        for _ in range(3 * SUCCESSES_PER_STEP):
            throttle.succeeded()
        assert throttle.limit == 4
        for _ in range(100 * SUCCESSES_PER_STEP):
            throttle.succeeded()
        assert throttle.limit == 32

    asyncio.run(main())


def test_the_bound_is_kept_in_order_and_survives_cancels() -> None:
    async def main() -> None:
        throttle = Throttle(2)
        order: list[int] = []

        async def work(number: int) -> None:
            await throttle.acquire()
            try:
                order.append(number)
                assert throttle.in_flight <= 2
                await asyncio.sleep(0)
            finally:
                throttle.release()

        tasks = [asyncio.ensure_future(work(number)) for number in range(40)]
        await asyncio.sleep(0)
        for task in tasks[3::3]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == sorted(order)
        assert set(order) >= set(range(40)) - set(range(3, 40, 3))
        assert throttle.in_flight == 0
        await asyncio.wait_for(throttle.acquire(), 1)

    asyncio.run(main())


def test_a_pause_holds_all_back() -> None:
    async def main() -> None:
        throttle, loop = Throttle(4), asyncio.get_running_loop()
        throttle.overloaded(0, 0.2)
        begin = loop.time()
        await asyncio.gather(throttle.acquire(), throttle.acquire())
        assert loop.time() - begin >= 0.19
        throttle.close()

    asyncio.run(main())


def test_a_server_with_a_limit_gives_what_it_gives(nginx: Nginx) -> None:
    """C67: 50 requests a second with a burst of 5; more are answered with 429 and Retry-After: 1."""
    wanted = [(f"many/{i:03d}.bin", 0, 400) for i in range(40)]

    async def main(backend: RetryingBackend) -> None:
        begin = time.monotonic()
        assert await read(backend, *wanted) == [FILES[name][:400] for name, _, _ in wanted]
        assert time.monotonic() - begin < 30
        assert backend.stats()["requests"] <= 3 * len(wanted)
        assert backend.stats()["concurrency"] < 32

    run(RetryingBackend(HTTPBackend(nginx.url("limited")), RetryPolicy()), main)


def test_at_least_one_request_may_be_under_way() -> None:
    with pytest.raises(ValueError, match="max_concurrency"):
        HTTPBackend("http://host/", max_concurrency=0)
