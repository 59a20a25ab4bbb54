"""Ctrl-C at any moment: it stops at once, loses nothing, and leaves nothing running."""

from __future__ import annotations

import contextlib
import dis
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import guideloom as gl
from tests.adversity.programs import run_program, running_program, succeeds
from tests.loader.samples import dataset_of, epochs, ids

PACKAGE = os.path.dirname(gl.__file__)
# Only after these does the interpreter look for signals.
CHECKING = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}


class InterruptAt:
    """Raises ``KeyboardInterrupt`` at the n-th place in the library's code where a signal could do so."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.fired = False
        self._before: dict[int, str] = {}
        self._names: dict[CodeType, dict[int, str]] = {}

    def __enter__(self) -> InterruptAt:
        sys.settrace(self._call)
        return self

    def __exit__(self, *details: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE) or self.fired:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and not self.fired:
            code = frame.f_code
            if code not in self._names:
                self._names[code] = {i.offset: i.opname for i in dis.get_instructions(code)}
            before, self._before[id(frame)] = self._before.get(id(frame), ""), self._names[code].get(frame.f_lasti, "")
            if before in CHECKING:
                self.left -= 1
                if self.left < 0:
                    self.fired = True
                    raise KeyboardInterrupt
        elif event == "return":
            self._before.pop(id(frame), None)
        return self._opcode


@pytest.mark.parametrize("make", [gl.Loader, gl.StatefulDataLoader])
@pytest.mark.parametrize("prefetch", [1, 16])
def test_no_moment_loses_or_doubles_a_batch(make: Any, prefetch: int) -> None:
    """C55, promise 1: interrupted at each place where a signal is looked for. The state names the batch after the last
    one that the loop received, and both the same iterator and the state go on with exactly that one."""
    dataset = dataset_of(11)
    (reference,) = epochs(dataset, 1, batch_size=2, shuffle=True)
    n, fired = 0, True
    while fired:
        for resume in ("iterator", "state"):
            with make(dataset, 2, shuffle=True, prefetch=prefetch) as loader:
                batches = iter(loader)
                received: list[Any] = []
                with InterruptAt(n) as interrupt, contextlib.suppress(KeyboardInterrupt):
                    for batch in batches:
                        received.append(batch)  # noqa: PERF402 - extend would lose all at an interrupt
                fired = interrupt.fired
                state = loader.state_dict()
                assert (state["epoch"], state["step"]) == divmod(len(received), len(reference))
                if resume == "iterator":
                    rest = [ids(batch) for batch in batches]
                else:
                    loader.load_state_dict(state)
                    rest = [] if state["epoch"] else [ids(batch) for batch in loader]
                assert [ids(batch) for batch in received] + rest == reference
        n += 1
    assert n > 50, "the places are many"


def test_an_interrupted_start_can_be_started_again() -> None:
    """Interrupted while `iter` is made: the next loop is whole, and nothing is left over."""
    dataset = dataset_of(11)
    (reference,) = epochs(dataset, 1, batch_size=2, shuffle=True)
    n, fired = 0, True
    while fired:
        with gl.Loader(dataset, 2, shuffle=True) as loader:
            with InterruptAt(n) as interrupt, contextlib.suppress(KeyboardInterrupt):
                iter(loader)
            fired = interrupt.fired
            assert loader.state_dict()["step"] == 0
            assert [ids(batch) for batch in loader] == reference
        n += 7
    assert n > 50


def test_an_interrupted_read_can_be_read_again() -> None:
    dataset = dataset_of(11)
    with dataset.sync_reader() as reader:
        n, fired = 0, True
        while fired:
            with InterruptAt(n) as interrupt, contextlib.suppress(KeyboardInterrupt):
                reader[3]
            fired = interrupt.fired
            assert ids(reader.read_batch([3, 5])) == [3, 5]
            n += 3


SIGNALS = """
    import random, signal, sys, threading, time
    import guideloom as gl
    from tests.loader.samples import dataset_of, epochs, ids
    from tests.streams import counted, store, stream_files
    from pathlib import Path

    root = store(stream_files(counted([4 * 3000 + 3], "<i4")), Path(sys.argv[1]))
    dataset = gl.open_dataset(root, window=4)
    reference = epochs(dataset, 1, batch_size=2, shuffle=True)[0]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    generator = random.Random(int(sys.argv[2]))
    interrupts = 0
    for round_number in range(12):
        loader = gl.Loader(dataset, 2, shuffle=True, prefetch=generator.choice([1, 4, 64]))
        iter(loader)  # starts the thread: an interrupt in Thread.start leaves the standard library's own locks astray
        received = []
        while len(received) < len(reference):
            try:
                signal.setitimer(signal.ITIMER_REAL, generator.random() * 0.012)
                for batch in loader:
                    received.append(batch)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            while True:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    state = loader.state_dict()
                    assert (state["epoch"], state["step"]) == divmod(len(received), len(reference))
                    loader.load_state_dict(state)
                    break
                except KeyboardInterrupt:
                    pass
        assert [ids(batch) for batch in received] == reference
        loader.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    print(interrupts, *(thread.name for thread in threading.enumerate()))
"""


@pytest.mark.parametrize("seed", range(2))
def test_real_signals_at_random_moments(tmp_path: Path, seed: int) -> None:
    """C55: hundreds of interrupts from a timer, each followed by a resume; each batch exactly once."""
    interrupts, *threads = succeeds(SIGNALS, tmp_path, seed).split()
    assert int(interrupts) > 40
    assert threads == ["MainThread"]


STALLED = """
    import asyncio, json, sys, time
    import guideloom as gl
    from tests.datasets.opened import OneMethod
    from tests.loader.samples import ids
    from tests.streams import counted, stream_files

    class Stalls(OneMethod):
        stall, cancelled = True, 0

        async def read_range(self, path, offset, length):
            if path.endswith(".bin") and offset >= 12 * 16 and self.stall:
                try:
                    print("stalled", flush=True)
                    await asyncio.Event().wait()
                finally:
                    self.cancelled += 1
            return await super().read_range(path, offset, length)

    backend = Stalls(stream_files(counted([4 * 40], "<i4")))
    loader = gl.Loader(gl.open_dataset(backend, window=4, verify=False), 4, prefetch=2)
    received = []
    try:
        for batch in loader:
            received.append(ids(batch)[0])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    state = loader.state_dict()
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 2
    assert backend.cancelled >= 1
    backend.stall = False
    with gl.Loader(loader.dataset, 4) as loader:
        loader.load_state_dict(state)
        print(json.dumps([received, state["step"], [ids(batch)[0] for batch in loader]]))
"""


def lines(program: subprocess.Popen[str]) -> Iterator[str]:
    assert program.stdout is not None
    for line in program.stdout:
        yield line.strip()


def test_a_stalled_read_is_interrupted_within_two_seconds() -> None:
    """C55: the main thread waits in `next`; the read is cancelled, the state is right, and a resume delivers it."""
    with running_program(STALLED) as program:
        output = lines(program)
        assert next(output) == "stalled"
        time.sleep(0.3)
        begin = time.monotonic()
        program.send_signal(signal.SIGINT)
        while (line := next(output)) == "stalled":
            pass
        assert line == "interrupted"
        assert time.monotonic() - begin < 2
        last = [line for line in output if line != "stalled"]
        assert json.loads(last[0]) == [[0, 4, 8], 3, [12, 16, 20, 24, 28, 32, 36]]
        assert (program.wait(5), program.stderr and program.stderr.read()) == (0, "")


def test_ctrl_c_ends_a_program_at_once(tmp_path: Path) -> None:
    """C55: nobody catches it; within two seconds the program is gone, with nothing but its own traceback."""
    code = """
        import sys
        import guideloom as gl
        from pathlib import Path
        from tests.streams import counted, store, stream_files
        loader = gl.Loader(gl.open_dataset(store(stream_files(counted([4000])), Path(sys.argv[1])), window=4), 2)
        next(iter(loader))
        print("ready", flush=True)
        while True:
            for batch in loader:
                pass
    """
    for delay in (0.0, 0.05, 0.2):
        with running_program(code, tmp_path) as program:
            assert next(lines(program)) == "ready"
            time.sleep(delay)
            begin = time.monotonic()
            program.send_signal(signal.SIGINT)
            status = program.wait(10)
            assert time.monotonic() - begin < 2
            errors = program.stderr.read() if program.stderr else ""
            assert status in (1, -signal.SIGINT)
            assert errors.count("Traceback") == 1
            assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_handler_may_save_the_state_in_the_middle_of_next() -> None:
    """A job that is told to end (SIGTERM, SIGUSR1) saves its position from the signal handler; no lock in the way."""
    code = """
        import json, os, signal
        import guideloom as gl
        from tests.loader.samples import dataset_of, ids
        loader = gl.Loader(dataset_of(400), 2)
        states = []
        signal.signal(signal.SIGALRM, lambda *_: states.append((loader.state_dict()["step"], len(received))))
        received = []
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        for _ in range(20):
            received = []
            for batch in loader:
                received.append(batch)
        signal.setitimer(signal.ITIMER_REAL, 0)
        loader.close()
        print(len(states))
    """
    outcome = run_program(code)
    assert (outcome.status, outcome.errors) == (0, "")
    assert int(outcome.output) > 10
