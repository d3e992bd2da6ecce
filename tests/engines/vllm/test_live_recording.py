"""A running engine core is recorded: it does what it does without, its traces are read, and no mistake of the recorder reaches it."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.plugins
from engine_core import BLOCK_SIZE, ONE_GROUP, RELEASE, EngineCore, make_core, request, serve, setup_of, shut_down, step
from loading_connector import LOADED_TOKENS, LoadingConnector
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.outputs import KVConnectorOutput

from settled.model import events as ev
from settled.model.monitor import Monitor, Report
from settled.model.properties import Property
from settled.model.trace_encoding import encode_line
from settled.model.trace_io import read_trace
from settled.proofs.vllm_plugin import register
from settled.reference.engines import trace_writer
from settled.reference.engines.setup import ConnectorSetup, EngineSetup
from settled.reference.engines.vllm.live import install, path_of
from settled.reference.engines.vllm.live_settings import LiveSettings
from settled.reference.engines.vllm.recording_steps import StepRecorder

NUM_REQUESTS = 24


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks are on the class: they go with the test."""
    monkeypatch.setattr(EngineCore, "add_request", EngineCore.add_request)
    monkeypatch.setattr(EngineCore, "shutdown", EngineCore.shutdown)
    monkeypatch.setattr(trace_writer, "FLUSH_SECONDS", 0.001)


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What the recorder says to the server's log, errors only."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Keep(logging.ERROR)
    logger = logging.getLogger("vllm.settled")
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    yield messages
    logger.removeHandler(handler)


def run(setup: EngineSetup | None = None) -> Any:
    """Tokens of each request, and all that the workers were told."""
    core = make_core(setup or setup_of())
    tokens = serve(core, num_requests=NUM_REQUESTS, abort_each=5)
    shut_down(core)
    return tokens, core.model_executor.told


def events_of(path: Path) -> list[ev.Event]:
    with path.open("rb") as lines:
        return [event for _, event in read_trace(lines, path.name)]


def report_of(path: Path) -> Report:
    events = events_of(path)
    assert isinstance(events[0], ev.Config)
    monitor = Monitor(events[0], source=path.name)
    for line, event in enumerate(events, start=1):
        monitor.feed(line, event)
    return monitor.finish()


def has_work(events: list[ev.Event]) -> bool:
    return any(isinstance(event, ev.Schedule) and event.requests for event in events)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("trace.*"), key=lambda path: int(path.suffixes[-2][1:]))


# ---- on and off ------------------------------------------------------------------------------------------------------


def test_off_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SETTLED_TRACE", raising=False)
    before = dict(vars(EngineCore))
    register()
    core = make_core(setup_of())
    serve(core, num_requests=2)
    assert dict(vars(EngineCore)) == before
    assert not [name for name in vars(core.scheduler) if callable(getattr(type(core.scheduler), name, None))]
    assert not files_in(tmp_path)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("async_scheduling", [True, False], ids=["async", "sync"])
def test_a_recorded_run_is_the_run_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str], async_scheduling: bool, drafts: int
) -> None:
    """And what is said of it is what is known of the release: behind drafts, those before 0.26 keep too little."""
    setup = setup_of(async_scheduling=async_scheduling, drafts=drafts)
    unrecorded = run(setup)
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    register()
    register()
    assert run(setup) == unrecorded
    (path,) = files_in(tmp_path)
    assert path.name == "trace.core0.0.ndjson"
    events = events_of(path)
    assert sum(isinstance(event, ev.Add) for event in events) == NUM_REQUESTS
    assert sum(isinstance(event, ev.Schedule) for event in events) == len(unrecorded[1])
    assert events[-1] == ev.End(idle=True)
    violated = {result.property for result in report_of(path).properties if result.count}
    assert violated <= ({Property.ROLLBACK_RESIDENT} if drafts and async_scheduling and RELEASE.version < "0.26" else set())
    if drafts and async_scheduling and RELEASE.version == "0.25.1":
        assert violated  # this very workload shows it
    assert told == []


def test_vllm_finds_the_plugin_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine core loads plugins in its own constructor: not too late."""
    installed = tmp_path / "site" / "settled-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: settled\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[vllm.general_plugins]\nsettled = settled.proofs.vllm_plugin:register\n")
    monkeypatch.syspath_prepend(str(installed.parent))
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    run()
    assert [report_of(path).exit_code for path in files_in(tmp_path)] == [0]


def test_each_engine_core_has_files_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ranks = [SimpleNamespace(data_parallel_rank=3), SimpleNamespace(data_parallel_rank=0, data_parallel_index=4)]
    names = [path_of(tmp_path / "trace.ndjson", SimpleNamespace(parallel_config=rank)).name for rank in ranks]
    assert names == ["trace.core3.ndjson", "trace.core4.ndjson"]
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    register()
    cores = [make_core(setup_of()) for _ in range(2)]
    for core in cores:
        serve(core, num_requests=4)
        shut_down(core)
    assert [path.name for path in files_in(tmp_path)] == ["trace.core0.0.ndjson", "trace.core0.1.ndjson"]
    assert [report_of(path).exit_code for path in files_in(tmp_path)] == [0, 0]


# ---- rotation and loss -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_scheduling", [True, False], ids=["async", "sync"])
def test_each_rotated_file_is_checked_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, async_scheduling: bool) -> None:
    """Where no step is in flight between two calls, a file is complete; otherwise its tail is not judged.

    How full a file gets is the writer's timing: it gets time to keep up, and the last file may still have steps of no request alone, of
    which nothing can be said.
    """
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    monkeypatch.setenv("SETTLED_TRACE_FILE_BYTES", "20000")
    monkeypatch.setenv("SETTLED_TRACE_FILES", "100")
    register()
    core = make_core(setup_of(async_scheduling=async_scheduling))
    core.model_executor.reports = lambda scheduler_output: time.sleep(0.005)
    serve(core, num_requests=NUM_REQUESTS, abort_each=5)
    shut_down(core)
    first, *later = [events_of(path) for path in files_in(tmp_path)]
    assert len(later) >= 2
    for events in later:
        assert events[0] == first[0]
        assert isinstance(events[1], ev.State)
    *cut, last = [(report_of(path).exit_code, has_work(events_of(path))) for path in files_in(tmp_path)]
    assert last in ((0, True), (3, False))
    assert {code for code, _ in cut} <= ({0, 3} if async_scheduling else {0})


def test_a_full_buffer_is_a_gap_and_the_verdict_unknown(tmp_path: Path) -> None:
    disk = Disk()
    install(LiveSettings(path=tmp_path / "trace.ndjson", buffer_records=100), disk.encode)
    core = make_core(setup_of())
    core.model_executor.reports = lambda scheduler_output: disk.keep_up() if len(core.model_executor.told) >= 20 else None
    serve(core, num_requests=NUM_REQUESTS, abort_each=5)
    shut_down(core)
    (path,) = files_in(tmp_path)
    events = events_of(path)
    gap, *later = [index for index, event in enumerate(events) if isinstance(event, ev.Gap)]
    assert later == []
    assert [event.name for event in events[gap : gap + 3]] == ["gap", "config", "state"]
    assert events[-1] == ev.End(idle=True)
    report = report_of(path)
    assert report.exit_code == 3
    assert not [result for result in report.properties if result.count]


class Disk:
    """Takes nothing until it is free, and then all that waits."""

    def __init__(self) -> None:
        self._is_free = threading.Event()
        self._taken = 0

    def encode(self, event: ev.Event) -> bytes:
        self._is_free.wait(60)
        self._taken += 1
        return encode_line(event)

    def keep_up(self) -> None:
        """Time enough for a step's events: until none has come for a while."""
        self._is_free.set()
        before = -1
        while self._taken != before:
            before = self._taken
            time.sleep(0.02)


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_a_mistake_of_the_recorder_ends_the_recording_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str]) -> None:
    unrecorded = run()
    scheduled, calls = StepRecorder._scheduled, iter(range(1000))

    def fail_at_the_tenth(self: StepRecorder, output: Any) -> None:
        if next(calls) == 9:
            raise KeyError("planted")
        scheduled(self, output)

    monkeypatch.setattr(StepRecorder, "_scheduled", fail_at_the_tenth)
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    register()
    core = make_core(setup_of())
    tokens = serve(core, num_requests=NUM_REQUESTS, abort_each=5)
    assert "schedule" not in vars(core.scheduler)  # everything is put back
    shut_down(core)
    assert (tokens, core.model_executor.told) == unrecorded
    assert told == ["settled: recording ends, the server goes on: KeyError: 'planted'"]
    (path,) = files_in(tmp_path)
    assert sum(isinstance(event, ev.Schedule) for event in events_of(path)) == 9
    assert report_of(path).exit_code == 3


def test_what_the_recorder_cannot_explain_ends_the_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str]) -> None:
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    register()
    core = make_core(setup_of())
    core.add_request(request(core, "first", 40))
    core.scheduler.kv_cache_manager.block_pool.get_new_blocks(1)
    assert serve(core, num_requests=4).keys() == {"first", "r0", "r1", "r2", "r3"}
    shut_down(core)
    assert len(told) == 1
    assert "RecordingError" in told[0]


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [("SETTLED_TRACE", "/none/such/trace.ndjson", "FileNotFoundError"), ("SETTLED_TRACE_FILES", "few", "nothing is recorded")],
)
def test_a_wrong_setting_is_told_and_the_server_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str], variable: str, value: str, says: str
) -> None:
    unrecorded = run()
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    monkeypatch.setenv(variable, value)
    register()
    assert run() == unrecorded
    assert len(told) == 1
    assert says in told[0]


def test_a_process_that_ends_without_a_shutdown_has_written_its_buffer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a forked engine core does that is asked to stop in the middle: no `end`, and nothing else missing."""
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    monkeypatch.setattr(trace_writer, "FLUSH_SECONDS", 100)
    register()
    process = multiprocessing.get_context("fork").Process(target=_stop_in_the_middle, args=(make_core(setup_of()),))
    process.start()
    process.join(60)
    assert process.exitcode == 3
    (path,) = files_in(tmp_path)
    events = events_of(path)
    assert [event.name for event in events].count("schedule") == 2
    assert not isinstance(events[-1], ev.End)
    assert report_of(path).exit_code == 3


def _stop_in_the_middle(core: Any) -> None:
    core.add_request(request(core, "first", 40))
    step(core)
    step(core)
    sys.exit(3)


# ---- connectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["none", "block", "request"])
def test_transfers_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str], failure: str) -> None:
    if failure == "request" and not RELEASE.has("failed_requests"):
        pytest.skip("this release has no failures of whole requests")
    monkeypatch.setenv("SETTLED_TRACE", str(tmp_path / "trace.ndjson"))
    register()
    monkeypatch.setitem(KVConnectorFactory._registry, "LoadingConnector", lambda: LoadingConnector)
    connector = ConnectorSetup(name="LoadingConnector", extra=(("kv_load_failure_policy", "recompute"),))
    core = make_core(setup_of(connector=connector, groups=ONE_GROUP))
    core.model_executor.reports = Worker(core, failure).report
    for name in ("load-a", "loadsync-b", "keep-c"):
        core.add_request(request(core, name, 100, max_tokens=6))
    tokens = serve(core, num_requests=0)
    shut_down(core)
    assert {name: len(of) for name, of in tokens.items()} == {"load-a": 6, "loadsync-b": 6, "keep-c": 6}
    (path,) = files_in(tmp_path)
    events = events_of(path)
    loads = {event.request: event for event in events if isinstance(event, ev.Load)}
    stores = {event.request: event for event in events if isinstance(event, ev.Store)}
    over = {event.job: event for event in events if isinstance(event, ev.TransferDone)}
    assert loads.keys() == {"load-a", "loadsync-b"}
    assert loads["load-a"].step is None
    assert loads["loadsync-b"].step is not None
    blocks = loads["load-a"].blocks
    assert [len(of_group) for of_group in blocks] == [LOADED_TOKENS // BLOCK_SIZE]
    assert stores.keys() == {"keep-c"}
    assert over.keys() == {event.job for event in (*loads.values(), *stores.values())}
    assert over[loads["loadsync-b"].job].ok
    expected = {"none": None, "block": (blocks[0][:1],), "request": blocks}[failure]
    assert (over[loads["load-a"].job].ok, over[loads["load-a"].job].failed) == (expected is None, expected)
    assert report_of(path).exit_code == 0
    assert told == []


class Worker:
    """Is through with a load three steps after it was asked for, and with a store at once."""

    def __init__(self, core: Any, failure: str) -> None:
        self._scheduler, self._failure = core.scheduler, failure
        self._steps_waited = 0
        self._reported: set[str] = set()

    def report(self, scheduler_output: Any) -> Any:
        received: set[str] = set()
        failed: set[str] = set()
        invalid: set[int] = set()
        self._steps_waited += 1
        if self._steps_waited == 3:
            received = {"load-a"}
            if self._failure == "block":
                invalid = {self._scheduler.kv_cache_manager.get_block_ids("load-a")[0][0]}
            elif self._failure == "request":
                failed = received
        sent = {name for name, served in self._scheduler.requests.items() if name.startswith("keep") and served.is_finished()}
        sent -= self._reported
        self._reported |= sent
        optional = {"failed_recving": failed} if failed else {}
        return KVConnectorOutput(finished_recving=received, finished_sending=sent, invalid_block_ids=invalid, **optional)
