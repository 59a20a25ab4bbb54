"""Each benchmark once, in small: that it runs and measures the right thing, not how fast."""

import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import guideloom as gl
from benchmarks import data, document_data, documents, http, metadata, page_cache, stream, writers, writing
from benchmarks.clock import Clock, Timing
from benchmarks.contenders import BATCH_SIZE, CONTENDERS, Workload, read_windows
from benchmarks.measure import Benchmark, Contender, Goal, Outcome, Report, run_rounds, select
from benchmarks.process import call_fresh
from benchmarks.report import as_json, show
from benchmarks.web_server import nginx
from benchmarks.yardstick import Yardstick, compile_yardstick
from guideloom import StreamStorage

TIMING = Timing(warmup_seconds=0.01, seconds=0.02)
TINY = stream.Size(num_shards=3, shard_tokens=30_011, many_shards=5, many_tokens=16_384, timing=TIMING)


@pytest.fixture(scope="module", autouse=True)
def work_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("benchmarks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUIDELOOM_BENCH_DIR", str(folder))
        yield folder


def workload(window: int = 64) -> Workload:
    path = data.stream(TINY.num_shards, TINY.shard_tokens)
    files = [str(file) for file in data.shard_files(path)]
    return Workload(str(path), files, str(data.raw_file(TINY.num_tokens)), TINY.num_tokens, window, window)


@pytest.mark.parametrize(
    "make",
    [
        lambda: stream.warm(TINY, 512),
        lambda: stream.cold(TINY, 512),
        lambda: stream.start(TINY),
        lambda: stream.memory(TINY),
        lambda: stream.shuffle(TINY),
        lambda: metadata.reading(data.layered_stream(TINY.num_shards, TINY.shard_tokens), TIMING),
        lambda: metadata.storing(data.layered_stream(TINY.num_shards, TINY.shard_tokens)),
    ],
    ids=["warm", "cold", "start", "memory", "shuffle", "metadata", "metadata on disk"],
)
def test_every_contender_runs(make: Any) -> None:
    benchmark: Benchmark = make()
    assert benchmark.contenders
    names = {contender.name for contender in benchmark.contenders}
    assert len(names) == len(benchmark.contenders)
    for contender in benchmark.contenders:
        assert {goal.times for goal in contender.goals} <= {"", *names}
        if contender.prepare is not None:
            contender.prepare()
        module, _, name = contender.function.partition(":")
        result = getattr(import_module(module), name)(**json.loads(json.dumps(contender.arguments)))
        assert result["values"]
        assert all(np.isfinite(value) for value in [*result["values"], *result.get("costs", {}).values()])


@pytest.mark.skipif(
    not shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"), reason="needs nginx: apt-get install nginx"
)
def test_http() -> None:
    size = http.Size(2, 65_536, TIMING)
    path = data.stream(size.num_shards, size.shard_tokens)
    with nginx(path) as url:
        race = http.ranges_benchmark(size, url, path, 8192)
        found = {contender.name: _called(contender) for contender in race.contenders}
        windows = _called(http.windows_benchmark(size, url).contenders[1])
    for name in (http.BARE, "HTTPBackend"):
        assert found[name]["costs"]["requests each"] == found[name]["costs"]["read ×"] == 1
    assert found["… coalescing"]["costs"]["requests each"] < 1
    assert all(value > 0 for result in (*found.values(), windows) for value in result["values"])


def _called(contender: Contender) -> dict[str, Any]:
    """Return what a contender's function returns, in this process."""
    module, _, name = contender.function.partition(":")
    result: dict[str, Any] = getattr(import_module(module), name)(**contender.arguments)
    return result


def test_the_issue_s_contenders_are_there() -> None:
    names = [contender.name for contender in stream.warm(TINY, 512).contenders]
    for loader in ("Loader", "StatefulDataLoader", "async reader"):
        assert {loader, f"{loader}, no checks"} <= set(names)
    assert {stream.PREAD, stream.GATHER, stream.TORCH} <= set(names)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    stream.main(["--quick", "--rounds", "1", "--windows", "512", "--only", "numpy take", "--json", str(file)])
    found = json.loads(file.read_text())
    assert found["options"] == {"rounds": 1, "quick": True}
    assert found["machine"]["cores"] >= 1
    (benchmark,) = found["benchmarks"]
    by_name = {contender["name"]: contender for contender in benchmark["contenders"]}
    assert list(by_name) == [stream.PREAD, stream.GATHER, stream.TORCH]
    for contender in by_name.values():
        assert len(contender["runs"]) == 1
        assert contender["figure"]["least"] <= contender["figure"]["median"] <= contender["figure"]["most"]
    assert by_name[stream.PREAD]["ratios"][stream.PREAD]["median"] == 1
    printed = capsys.readouterr().out
    assert "T = 512 int32" in printed
    assert all(name in printed for name in by_name)


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--only", "nobody"], "'nobody'"), (["--rounds", "0"], "at least one round")]
)
def test_command_line_refuses(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        stream.main(["--quick", *arguments])
    assert message in capsys.readouterr().err


def test_metadata_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    metadata.main(["--quick", "--only", "rows, index", "--json", str(file)])
    (benchmark,) = json.loads(file.read_text())["benchmarks"]
    assert benchmark["contenders"][0]["figure"]["median"] <= 0.2
    assert "reached" in capsys.readouterr().out
    for arguments, message in ((["--only", "nobody"], "'nobody'"), (["--rounds", "0"], "at least one round")):
        with pytest.raises(SystemExit):
            metadata.main(["--quick", *arguments])
        assert message in capsys.readouterr().err


def test_wrong_bytes_are_noticed(tmp_path: Path) -> None:
    work = asdict(workload())
    zeros = tmp_path / "zeros.bin"
    zeros.write_bytes(bytes(4 * TINY.num_tokens))
    read_windows("numpy_take", work, asdict(TIMING))
    with pytest.raises(RuntimeError, match="what was read"):
        read_windows("numpy_take", {**work, "raw": str(zeros)}, asdict(TIMING))


@pytest.mark.parametrize("contender", ["loader", "torch_loader", "async_reader"])
def test_a_bounded_run_ends_with_its_last_window(contender: str) -> None:
    class CountingClock(Clock):
        counted = 0

        def add(self, items: int) -> bool:
            self.counted += items
            return super().add(items)

    clock = CountingClock(Timing(warmup_seconds=0, seconds=float("inf"), segments=1, most_items=96))
    function, *_ = CONTENDERS[contender]
    assert len(function(workload(), clock, verify=True)) == BATCH_SIZE
    assert clock.counted == 96
    assert len(clock.result(1)["values"]) == 1


class TestData:
    def test_tokens_are_their_positions(self) -> None:
        path = data.stream(TINY.num_shards, TINY.shard_tokens)
        stored = np.concatenate([np.fromfile(file, "<i4") for file in data.shard_files(path)])
        np.testing.assert_array_equal(stored, np.arange(TINY.num_tokens))
        np.testing.assert_array_equal(np.fromfile(data.raw_file(TINY.num_tokens), "<i4"), stored)

    def test_what_is_there_is_not_written_again(self, capsys: pytest.CaptureFixture[str]) -> None:
        path = data.stream(2, 1000)
        assert "8 MB" not in capsys.readouterr().err
        before = {file: file.stat().st_mtime_ns for file in page_cache.files_of(path)}
        assert data.stream(2, 1000) == path
        assert {file: file.stat().st_mtime_ns for file in page_cache.files_of(path)} == before
        assert not capsys.readouterr().err

    def test_an_interrupted_write_is_finished(self, work_folder: Path) -> None:
        storage = StreamStorage.create(work_folder / "stream-3x500", dtype="<i4")
        with storage.writer(shard=1) as shard:
            shard.append(np.arange(500, 1000, dtype="<i4"))
        first_file = {file.name for file in (work_folder / "stream-3x500" / "shards").iterdir()}
        path = data.stream(3, 500)
        np.testing.assert_array_equal(
            np.concatenate([np.fromfile(file, "<i4") for file in data.shard_files(path)]), np.arange(1500)
        )
        assert first_file < {file.name for file in (path / "shards").iterdir()}

    def test_a_full_disk_is_said_before_anything_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        with pytest.raises(OSError, match="GUIDELOOM_BENCH_DIR"):
            data.raw_file(1_000)


class TestYardstick:
    @pytest.mark.parametrize("num_threads", [1, 3])
    def test_reads_windows_over_edges(self, num_threads: int) -> None:
        path = data.stream(TINY.num_shards, TINY.shard_tokens)
        files = data.shard_files(path)
        firsts = np.array([0, TINY.shard_tokens - 3, TINY.shard_tokens, TINY.num_tokens - 10, 17])
        with Yardstick(compile_yardstick(), files, 40, num_threads) as yardstick:
            for first in firsts.tolist():
                yardstick.read(np.array([4 * first]))
                read = yardstick.buffers.view("<i4")
                assert np.arange(first, first + 10).tolist() in read.tolist()
            yardstick.read(4 * firsts)
            assert set(yardstick.buffers.view("<i4")[:, 0].tolist()) <= {-1, *firsts.tolist()}

    def test_reads_a_window_over_several_files(self) -> None:
        files = data.shard_files(data.stream(4, 5))
        with Yardstick(compile_yardstick(), files, 4 * 13) as yardstick:
            yardstick.read(np.array([4 * 4]))
            assert yardstick.buffers.view("<i4")[0].tolist() == list(range(4, 17))

    def test_the_end_is_an_error(self) -> None:
        files = data.shard_files(data.stream(4, 5))
        with Yardstick(compile_yardstick(), files, 40) as yardstick, pytest.raises(OSError, match="No data"):
            yardstick.read(np.array([4 * 11]))

    def test_a_missing_compiler_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", "no-such-compiler")
        with pytest.raises(RuntimeError, match="no-such-compiler"):
            compile_yardstick()


class TestPageCache:
    @pytest.fixture
    def files(self) -> list[Path]:
        return page_cache.files_of(data.stream(TINY.num_shards, TINY.shard_tokens))

    def test_warm(self, files: list[Path]) -> None:
        page_cache.warm(files)
        assert page_cache.cached_share(files) == 1

    def test_drop(self, files: list[Path]) -> None:
        _skip_in_memory(files[0])
        page_cache.warm(files)
        page_cache.drop(files)
        assert page_cache.cached_share(files) == 0

    def test_part_of_a_file_is_cached(self, tmp_path: Path) -> None:
        _skip_in_memory(tmp_path)
        sparse = tmp_path / "sparse.bin"
        with sparse.open("wb") as file:
            file.truncate(1 << 20)
        with sparse.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
            file.read(8192)
        assert 2 / 256 <= page_cache.cached_share([sparse]) < 1


class TestDocuments:
    def test_every_contender_reads_documents(self) -> None:
        (report,) = documents.main(["--quick"])
        assert set(report.outcomes) == {contender.name for contender in report.benchmark.contenders}
        assert len(report.outcomes) == 8

    def test_documents_hold_what_they_are_said_to(self) -> None:
        path = document_data.documents(3, 50)
        with gl.open_dataset(path).sync_reader() as reader:
            rows = [sample["tokens"] for sample in reader]
        assert [len(row) for row in rows] == document_data.lengths(50).tolist()
        assert all(row.tolist() == list(range(i, i + len(row))) for i, row in enumerate(rows))

    def test_the_yardstick_reads_each_length(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(bytes(range(10)))
        with Yardstick(compile_yardstick(), [tmp_path / "a"], 6) as yardstick:
            yardstick.read(np.array([2]), np.array([3]))
            assert yardstick.buffers.tolist() == [[2, 3, 4, 255, 255, 255]]


class TestClock:
    def test_segments(self) -> None:
        clock = Clock(Timing(warmup_seconds=0.01, seconds=0.01, segments=3))
        clock.start()
        began = time.perf_counter()
        while not clock.add(2):
            time.sleep(0.001)
        assert time.perf_counter() - began >= 0.04
        result = clock.result(item_bytes=10)
        assert len(result["values"]) == 3
        assert all(0 < rate <= 2000 for rate in result["values"])
        assert result["costs"]["GB/s"] == pytest.approx(sorted(result["values"])[1] * 1e-8)

    def test_bound(self) -> None:
        clock = Clock(Timing(warmup_seconds=0, seconds=float("inf"), segments=1, most_items=100))
        assert clock.bounded
        clock.start()
        counts = itertools.takewhile(lambda _: not clock.add(30), itertools.count())
        assert len(list(counts)) == 3
        assert len(clock.result(1)["values"]) == 1


class TestRounds:
    def test_contenders_take_turns(self, capsys: pytest.CaptureFixture[str]) -> None:
        calls: list[str] = []

        def contender(name: str) -> Contender:
            def prepare() -> dict[str, float]:
                calls.append(name)
                return {"prepared": len(calls)}

            arguments = {"length": 5000, "at_once": 10, "seconds": 0.01}
            return Contender(name, "benchmarks.probes:shuffled_index", arguments, prepare=prepare)

        report = run_rounds(Benchmark("a race", "ns", [contender("one"), contender("two")]), 2)
        assert calls == ["one", "two", "one", "two"]
        assert report.outcomes["one"].costs == {"prepared": 2}  # the median of 1 and 3
        assert all(len(outcome.runs) == 2 for outcome in report.outcomes.values())
        assert "a race: round 2 of 2" in capsys.readouterr().err

    def test_each_call_has_a_process_of_its_own(self) -> None:
        assert len({os.getpid(), call_fresh("os:getpid", {}), call_fresh("os:getpid", {})}) == 3

    def test_what_went_wrong_in_a_process_is_told(self) -> None:
        with pytest.raises(RuntimeError, match="has no attribute 'nothing'"):
            call_fresh("os:nothing", {})

    def test_ratios_are_of_the_same_round(self) -> None:
        report = self.report()
        ratio = report.ratios("fast")["slow"]
        assert (ratio.least, ratio.median, ratio.most) == (2, 3, 4)
        assert report.outcomes["fast"].spread.median == 40
        assert report.outcomes["fast"].costs == {"MB": 5}

    def test_verdicts(self) -> None:
        report = self.report()
        figures = [(verdict.figure, verdict.reached) for verdict in report.verdicts("fast")]
        assert figures == [(3, True), (3, False), (40, False), (40, True)]
        assert report.verdicts("slow") == []

    def test_selection_keeps_what_it_is_compared_with(self) -> None:
        benchmark = self.report().benchmark
        assert [contender.name for contender in select(benchmark, "FAST").contenders] == ["slow", "fast"]
        assert [contender.name for contender in select(benchmark, "slow").contenders] == ["slow"]
        assert not select(benchmark, "nobody").contenders

    @pytest.mark.parametrize("with_rich", [True, False])
    def test_tables(self, with_rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        if not with_rich:
            monkeypatch.setitem(sys.modules, "rich.console", None)
        show(self.report())
        printed = capsys.readouterr().out
        assert "a race: items/s" in printed
        assert "≥ 4 × s" in printed
        assert "3: MISSED" in printed
        assert "slow (s)" in printed
        assert ("│" in printed) == with_rich

    def test_json_holds_every_figure(self) -> None:
        found = json.loads(as_json([self.report()], {"cpu": "any"}, {}))
        fast = found["benchmarks"][0]["contenders"][1]
        assert [run["values"] for run in fast["runs"]] == [[20, 20], [40], [100, 60]]
        assert [goal["reached"] for goal in fast["goals"]] == [True, False, False, True]

    @staticmethod
    def report() -> Report:
        slow = Contender("slow", "x:y", {}, mark="s")
        goals = [Goal(2.5, "slow"), Goal(4, "slow"), Goal(41), Goal(60, at_most=True), Goal(9, "absent")]
        fast = Contender("fast", "x:y", {}, goals)
        other = Contender("other", "x:y", {})
        outcomes = {
            "slow": Outcome(slow, [{"values": [10]}, {"values": [10, 10]}, {"values": [27, 26, 28]}]),
            "fast": Outcome(
                fast,
                [
                    {"values": [20, 20], "costs": {"MB": 5}},
                    {"values": [40], "costs": {"MB": 4}},
                    {"values": [100, 60], "costs": {"MB": 9}},
                ],
            ),
        }
        outcomes["slow"].runs[2]["values"] = [80 / 3]
        return Report(Benchmark("a race", "items/s", [slow, fast, other], ("slow",)), outcomes)


def _skip_in_memory(path: Path) -> None:
    """Skip a test of the page cache where the filesystem is nothing else."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    _, kind = max((len(point), kind) for point, kind in mounts if path.is_relative_to(point))
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"files on {kind} cannot leave the page cache; put TMPDIR on a disk")


class TestWriting:
    def test_it_runs(self, tmp_path: Path) -> None:
        reports = writing.main(["--quick", "--json", str(tmp_path / "figures.json")])
        assert len(reports) == 3
        assert all(
            value > 0
            for report in reports
            for outcome in report.outcomes.values()
            for value in outcome.runs[0]["values"]
        )
        assert len(json.loads((tmp_path / "figures.json").read_text())["benchmarks"]) == 3

    @pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--only", "nobody"]])
    def test_wrong_arguments(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit):
            writing.main([*arguments, "--quick"])

    def test_only_the_data_is_synced_where_that_is_meant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[str] = []
        monkeypatch.setattr(
            writers, "_fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        )
        writers.shard_speed("data alone", shard_bytes=1000, num_shards=2)
        assert len(synced) == 2
        assert all(".bin." in name for name in synced)
