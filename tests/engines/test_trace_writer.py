"""What is written beside a running engine: nothing waits, nothing grows, what is lost is said, and each file is read alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor, Report
from settled.model.specs import FullAttentionSpec
from settled.model.trace_encoding import encode_line
from settled.model.trace_io import read_trace
from settled.reference.engines.trace_files import TraceFiles
from settled.reference.engines.trace_writer import TraceWriter

CONFIG = ev.Config(
    schema=1,
    engine="by hand",
    num_blocks=32,
    max_in_flight_steps=2,
    max_batched_tokens=64,
    num_draft_tokens=0,
    prefix_caching=False,
    kv_consumer=False,
    groups=(FullAttentionSpec(block_size=16),),
)
IDLE = ev.State(requests=(), unprocessed=(), tables={})
STEP = ev.State(requests=(), unprocessed=(ev.UnprocessedStep(step=4, requests=()),), tables={})


class Gate:
    """An encoder that stands still until it is opened, as a disk does that takes nothing more."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def encode(self, event: ev.Event) -> bytes:
        assert self._open.wait(10)
        return encode_line(event)

    def open(self) -> None:
        self._open.set()


class Recording:
    """A writer with its failures kept."""

    def __init__(self, path: Path, *, encode: Callable[[ev.Event], bytes] = encode_line, file_bytes: int = 1 << 20, files: int = 3) -> None:
        self.failures: list[Exception] = []
        self.path = path
        self.files = TraceFiles(path, file_bytes=file_bytes, files_max=files)
        self.writer = TraceWriter(self.files, encode, self.failures.append, buffer_records=8)

    def add(self, number: int) -> None:
        self.writer.write(ev.Add(request=f"r{number}", prompt_tokens=3))

    def await_opening(self) -> None:
        """The writer's thread runs every 50 ms."""
        for _ in range(200):
            if self.writer.needs_opening:
                return
            threading.Event().wait(0.02)
        raise AssertionError("no opening became due within 4 s")

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir())


def events_of(path: Path) -> list[ev.Event]:
    with path.open("rb") as lines:
        return [event for _, event in read_trace(lines, path.name)]


def report_of(path: Path) -> Report:
    events = events_of(path)
    assert isinstance(events[0], ev.Config)
    monitor = Monitor(events[0])
    for line, event in enumerate(events, start=1):
        monitor.feed(line, event)
    return monitor.finish()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.ndjson"


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "settled-trace-writer"] == []


def test_events_stand_in_the_file_in_order(path: Path) -> None:
    recording = Recording(path)
    written = [CONFIG, *(ev.Add(request=f"r{number}", prompt_tokens=3) for number in range(4)), ev.End(idle=False)]
    for event in written:
        recording.writer.write(event)
    recording.writer.close()
    assert events_of(path.with_name("trace.0.ndjson")) == written
    assert recording.failures == []


def test_what_finds_no_room_is_counted_and_the_trace_is_unknown(path: Path) -> None:
    gate = Gate()
    recording = Recording(path, encode=gate.encode)
    recording.writer.write(CONFIG)
    for number in range(20):
        recording.add(number)
    assert not recording.writer.needs_opening  # there is no room yet
    gate.open()
    recording.await_opening()
    recording.add(20)  # after a loss nothing is taken before config and state
    recording.writer.open_anew(CONFIG, IDLE)
    recording.writer.write(ev.End(idle=True))
    recording.writer.close()
    events = events_of(path.with_name("trace.0.ndjson"))
    taken = [event for event in events if isinstance(event, ev.Add)]
    assert events[len(taken) + 1 :] == [ev.Gap(events=21 - len(taken)), CONFIG, IDLE, ev.End(idle=True)]
    assert 7 <= len(taken) <= 8  # the first may have left the buffer already
    assert report_of(path.with_name("trace.0.ndjson")).exit_code == 3


def test_a_loss_before_the_end_is_told(path: Path) -> None:
    gate = Gate()
    recording = Recording(path, encode=gate.encode)
    recording.writer.write(CONFIG)
    for number in range(20):
        recording.add(number)
    recording.writer.write(ev.End(idle=True))
    gate.open()
    recording.writer.close()
    *_, last = events_of(path.with_name("trace.0.ndjson"))
    assert isinstance(last, ev.Gap)
    assert report_of(path.with_name("trace.0.ndjson")).exit_code == 3


def test_a_step_takes_room_for_each_of_its_requests(path: Path) -> None:
    gate = Gate()
    recording = Recording(path, encode=gate.encode)
    recording.writer.write(CONFIG)
    requests = tuple(ev.ProcessedRequest(request=f"r{number}", sampled=1, rejected=0) for number in range(8))
    for step in range(3):
        recording.writer.write(ev.Process(step=step, requests=requests))
    gate.open()
    recording.writer.close()
    assert [event.name for event in events_of(path.with_name("trace.0.ndjson"))] == ["config", "process", "gap"]


@pytest.mark.parametrize(("state", "last"), [(IDLE, [ev.End(idle=False)]), (STEP, [])], ids=["quiet", "step in flight"])
def test_a_full_file_is_closed_and_each_is_read_alone(path: Path, state: ev.State, last: list[ev.Event]) -> None:
    """A file is called complete only if nothing was under way where it stops."""
    recording = Recording(path, file_bytes=1)
    recording.writer.write(CONFIG)
    recording.add(0)
    recording.await_opening()
    recording.writer.open_anew(CONFIG, state)
    recording.add(1)
    recording.writer.close()
    first, second = (path.with_name(f"trace.{number}.ndjson") for number in range(2))
    assert events_of(first)[2:] == last
    assert events_of(second) == [CONFIG, state, ev.Add(request="r1", prompt_tokens=3)]
    assert [report_of(file).complete for file in (first, second)] == [bool(last), False]


def test_the_oldest_files_of_this_recording_go_and_no_others(path: Path) -> None:
    earlier = path.with_name("trace.0.ndjson")
    earlier.write_text("of an earlier start\n")
    recording = Recording(path, file_bytes=1, files=2)
    recording.writer.write(CONFIG)
    for _ in range(4):
        recording.await_opening()
        recording.writer.open_anew(CONFIG, IDLE)
    recording.writer.close()
    assert recording.names() == ["trace.0.ndjson", "trace.4.ndjson", "trace.5.ndjson"]
    assert earlier.read_text(encoding="utf-8") == "of an earlier start\n"


def test_a_failing_disk_ends_the_recording_and_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(path)
    recording.writer.write(CONFIG)
    for _ in range(200):
        if path.with_name("trace.0.ndjson").stat().st_size:
            break
        threading.Event().wait(0.02)
    write = _half_of_it_then_full()
    monkeypatch.setattr("settled.reference.engines.trace_files.os.write", write)
    recording.add(0)
    recording.writer.close()
    assert [str(failure) for failure in recording.failures] == ["[Errno 28] No space left on device"]
    recording.add(1)
    assert not recording.writer.needs_opening
    assert events_of(path.with_name("trace.0.ndjson")) == [CONFIG]


def _half_of_it_then_full() -> Callable[[int, memoryview], int]:
    original, calls = os.write, iter(range(2))

    def write(descriptor: int, data: memoryview) -> int:
        if next(calls) == 0:
            return original(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    return write


def test_an_event_that_cannot_be_encoded_ends_the_recording(path: Path) -> None:
    recording = Recording(path)
    recording.writer.write(CONFIG)
    recording.writer.write(ev.Add(request=7, prompt_tokens=3))  # type: ignore[arg-type]
    recording.writer.close()
    (failure,) = recording.failures
    assert "Expected `str`, got `int`" in str(failure)
    assert events_of(path.with_name("trace.0.ndjson")) == [CONFIG]


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TraceFiles(tmp_path / "none" / "trace.ndjson", file_bytes=1, files_max=1)
