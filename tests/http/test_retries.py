"""Reads that fail for a while are tried again, within bounds, and go on where they broke."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from guideloom.backends import HTTPBackend, RangeBackend, RetryingBackend, RetryPolicy
from guideloom.backends.http_answers import retry_after
from guideloom.backends.retrying import is_transient
from guideloom.errors import BackendError, MissingFileError, RetriesExhaustedError, ShortReadError
from tests.http.misbehaving import Answer, MisbehavingServer, Request, proper
from tests.http.reading import DATA, FILES, QUICK, WHOLE, failure, first, read, retrying, run


@pytest.mark.parametrize("cut", [0, 1, 4096, 30_000, 65_535])
@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_cut_body_goes_on_where_it_broke(cut: int, then: Any) -> None:
    """R6, C66: one further request, for the bytes that are not there, of the same version."""
    act = first(1, lambda request: replace(proper(FILES, request), sent=cut, then=then))
    with MisbehavingServer(FILES, act) as server:
        backend = retrying(server)
        assert run(backend, read, WHOLE) == [DATA]
        assert len(server.requests) == 2
        again = server.requests[1]
        assert again.range is not None
        assert 0 <= again.range[0] <= cut
        assert again.range[1] == len(DATA)
        assert again.headers["if-match"]
        assert backend.stats()["retries"] == 1


def test_cut_again_and_again() -> None:
    cuts = iter([20_000, 9_000, 100])
    act = first(3, lambda request: replace(proper(FILES, request), sent=next(cuts), then="close"))
    with MisbehavingServer(FILES, act) as server:
        assert run(retrying(server), read, WHOLE, ("b.bin", 7, 9)) == [DATA, DATA[::-1][7:16]]


def test_a_file_that_is_replaced_between_the_parts_is_an_error() -> None:
    """R6: never half old, half new."""
    files = {"a.bin": DATA}

    def act(request: Request) -> Answer:
        answer = proper(files, request, preconditions=False)
        files["a.bin"] = DATA[::-1]
        return replace(answer, sent=30_000, then="close")

    with MisbehavingServer(files, act) as server:
        found = run(retrying(server), failure, WHOLE)
        assert type(found).__name__ == "FileChangedError"
        assert len(server.requests) == 2


def test_a_short_file_is_said_to_be_short_after_a_cut_too() -> None:
    act = first(1, lambda request: replace(proper(FILES, request), sent=300, then="close"))

    def act_then_short(request: Request) -> Answer | None:
        answer = act(request)
        if answer is not None:
            return answer
        return Answer(416, {"Content-Range": f"bytes */{len(DATA)}"})

    with MisbehavingServer(FILES, act_then_short) as server:
        found = run(retrying(server), failure, ("a.bin", 60_000, 5_000))
    assert isinstance(found, ShortReadError)
    assert found.found == len(DATA) - 60_000


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_each_trouble_that_passes(status: int) -> None:
    """T1, C68."""
    with MisbehavingServer(FILES, first(2, lambda request: Answer(status))) as server:
        assert run(retrying(server), read, WHOLE) == [DATA]
        assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 412])
def test_what_is_final_is_asked_once(status: int) -> None:
    """T1."""
    with MisbehavingServer(FILES, lambda request: Answer(status)) as server:
        assert not isinstance(run(retrying(server), failure, WHOLE), RetriesExhaustedError)
        assert len(server.requests) == 1


def test_retries_end_with_all_that_happened() -> None:
    """T2: nine requests, and the error holds each attempt's time and cause."""
    with MisbehavingServer(FILES, lambda request: Answer(500)) as server:
        found = run(retrying(server), failure, WHOLE)
        assert len(server.requests) == 9
    assert isinstance(found, RetriesExhaustedError)
    assert [attempt for attempt in found.attempts if "500" in attempt[1]] == found.attempts
    assert len(found.attempts) == 9
    assert (found.path, found.offset, found.length) == WHOLE


def test_retries_end_with_their_time() -> None:
    policy = RetryPolicy(first_delay_seconds=0.2, max_seconds=0.3)
    with MisbehavingServer(FILES) as server:
        pass
    begin = time.monotonic()
    assert isinstance(run(retrying(server, policy), failure, WHOLE), RetriesExhaustedError)
    assert time.monotonic() - begin < 5


def test_an_address_where_nobody_listens_is_told_before_long_when_a_dataset_is_opened() -> None:
    with MisbehavingServer(FILES) as server:
        pass

    async def read_file(backend: RetryingBackend) -> bytes:
        return await backend.read_file("a.bin", max_bytes=10)

    with pytest.raises(RetriesExhaustedError, match="8 retries"):
        run(retrying(server), read_file)


def test_while_nobody_listens_time_alone_counts() -> None:
    """A server that is restarted: more attempts than retries, and none of them reached it."""
    with MisbehavingServer(FILES) as server:
        server.stop()
        timer = threading.Timer(0.5, server.start)
        timer.start()
        backend = retrying(server)
        assert run(backend, read, WHOLE) == [DATA]
        assert backend.stats()["retries"] > QUICK.max_retries
        assert len(server.requests) == 1
        timer.join()


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_the_server_s_wish_to_wait_is_a_floor(form: str) -> None:
    """T4, C67: and nobody else asks meanwhile."""
    wish = "1" if form == "seconds" else format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    times: list[float] = []

    def act(request: Request) -> Answer | None:
        times.append(time.monotonic())
        return Answer(429, {"Retry-After": wish}) if len(times) == 1 else None

    with MisbehavingServer(FILES, act) as server:
        assert run(retrying(server, max_concurrency=1), read, WHOLE, ("b.bin", 0, 5)) == [DATA, DATA[::-1][:5]]
    assert times[1] - times[0] >= 0.95


def test_a_long_wish_to_wait_is_an_error_at_once() -> None:
    """T4."""
    with MisbehavingServer(FILES, lambda request: Answer(503, {"Retry-After": "3600"})) as server:
        found = run(retrying(server), failure, WHOLE)
        assert len(server.requests) == 1
    assert isinstance(found, RetriesExhaustedError)
    assert "3600 s" in str(found)


def test_the_budget_bounds_the_load_on_a_server_in_trouble() -> None:
    """T5: after a burst of 50, at most a tenth more requests than usual."""
    with MisbehavingServer(FILES, lambda request: Answer(500)) as server:

        async def main(backend: RetryingBackend) -> None:
            for i in range(100):
                assert isinstance(await failure(backend, ("a.bin", i, 1)), RetriesExhaustedError)

        run(retrying(server), main)
        assert len(server.requests) <= 100 + 50


def test_delays_are_spread_over_their_whole_width() -> None:
    """T3: 256 clients failing together."""
    delays = [RetryPolicy().delay(4) for _ in range(2000)]
    assert min(delays) >= 0
    assert max(delays) <= 1.6
    busiest = max(sum(low <= delay < low + 0.1 for delay in delays) for low in (0.1 * i for i in range(16)))
    assert busiest <= 2 * len(delays) / 16
    random.seed(0)
    one = RetryPolicy().delay(4)
    random.seed(0)
    assert RetryPolicy().delay(4) != one  # ranks are seeded alike
    assert RetryPolicy().delay(1000) <= 15


@pytest.mark.parametrize(
    ("value", "seconds"), [("", None), ("5", 5), ("-5", None), ("1e9", None), ("soon", None), ("9" * 30, None)]
)
def test_wishes_that_make_no_sense(value: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": value}) == seconds


def test_a_date_that_has_passed_is_now() -> None:
    assert retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0


def test_cancelling_ends_the_wait() -> None:
    """T11."""

    async def main(backend: RetryingBackend) -> None:
        task = asyncio.ensure_future(read(backend, WHOLE))
        await asyncio.to_thread(asked.wait, 10)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asked = threading.Event()

    def act(request: Request) -> Answer:
        asked.set()
        return Answer(503, {"Retry-After": "30"})

    with MisbehavingServer(FILES, act) as server:
        run(RetryingBackend(HTTPBackend(server.url)), main)


class Custom(RangeBackend):
    """Raises what it is given, once."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.errors = [error]

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        if self.errors:
            raise self.errors.pop()
        return DATA[offset : offset + length]


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OSError(errno.EIO, "input/output error"), True),
        (OSError(errno.ESTALE, "stale"), True),
        (TimeoutError(), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (OSError(errno.EACCES, "permission denied"), False),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (KeyError("a bug"), False),
        (ShortReadError("short", path="a", offset=0, length=1, found=0), False),
    ],
)
def test_other_backends_are_retried_by_the_system_s_error(error: Exception, transient: bool) -> None:
    """C76."""
    backend = RetryingBackend(Custom(error), QUICK)
    if transient:
        assert run(backend, read, WHOLE) == [DATA]
    else:
        found = run(backend, failure, WHOLE)
        assert not isinstance(found, RetriesExhaustedError)
        assert not is_transient(found)


def test_missing_files_are_final() -> None:
    assert not is_transient(MissingFileError("gone", path="a"))
    assert is_transient(BackendError("busy", path="a", transient=True))


@pytest.mark.parametrize("options", [{"max_retries": -1}, {"budget": -1}])
def test_bounds_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        RetryPolicy(**options)
