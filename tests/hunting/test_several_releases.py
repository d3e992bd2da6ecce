"""Releases beside each other, each in a worker: one that fails leaves the others alone, and none outlives the process that started it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from settled.proofs.cli.main import cli
from settled.proofs.hunting import releases
from settled.proofs.hunting.campaign import Plan, Progress, Told
from settled.proofs.hunting.client import WORKER_MODULE, RemoteHunt
from settled.proofs.hunting.launching import remote_hunt
from settled.proofs.hunting.messages import plan_as_dict
from settled.proofs.hunting.releases import ReleasesHunt, plans_for
from settled.proofs.hunting.worker import EXIT_ALONE

COMMAND = "from settled.proofs.cli.main import main; main()"
TWO = ["hunt", "reference", "--releases", "optimistic,settled", "--mix", "windows"]
SECONDS_MAX = 120.0
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def await_(what: Callable[[], bool]) -> None:
    ends = time.monotonic() + SECONDS_MAX
    while not what():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.05)


def state_and_parent(pid: int | str) -> tuple[str, int]:
    """Of a process; "X", 0 where there is none. A name may hold anything, so what follows its bracket is read."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
    except OSError:
        return "X", 0
    return state, int(parent)


def children_of(pid: int) -> list[int]:
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if state_and_parent(each.name)[1] == pid]


def have_ended(pids: list[int]) -> bool:
    """A zombie has, too: whoever inherited it may be in no hurry."""
    return all(state_and_parent(pid)[0] in "XZ" for pid in pids)


def test_releases_are_told_apart_in_the_order_given(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, [*TWO, "--workloads", "60", "--json", "--corpus", str(tmp_path)])
    told = json.loads(result.output)
    assert result.exit_code == told["exit_code"] == 1
    broken, right = told["releases"]
    assert (broken["engine"], right["engine"]) == ("reference optimistic", "reference settled")
    assert (broken["workloads"], right["workloads"], right["findings"]) == (60, 60, [])
    assert {each["property"] for each in broken["showing"]} >= {"rollback_resident"}
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".ndjson", ".txt"}
    table = CliRunner().invoke(cli, [*TWO, "--workloads", "60"]).output
    assert "violates rollback_resident" in table
    assert "exit code 1" in table


@contextmanager
def crashing(plan: Plan, tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> Iterator[RemoteHunt]:
    """In place of what starts the worker of the right discipline: a process that kills itself."""
    if plan.engine == "reference==settled":
        code = "import os, sys; print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
        yield RemoteHunt([sys.executable, "-c", code], os.environ, plan, tell, tick)
        return
    with remote_hunt(plan, tell, tick) as hunt:
        yield hunt


def test_a_worker_that_crashes_is_told_with_its_log_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "remote_hunt", crashing)
    result = CliRunner().invoke(cli, [*TWO, "--workloads", "60", "--json"])
    told = json.loads(result.output)
    other, crashed = told["releases"]
    assert result.exit_code == told["exit_code"] == 2
    assert (other["error"], other["workloads"]) == ("", 60)
    assert other["findings"]
    match = re.search(r"the worker was ended by SIGKILL: last words \(all that it said is in (.+)\)", crashed["error"])
    assert match is not None, crashed["error"]
    assert Path(match[1]).read_text(encoding="utf-8") == "last words\n"
    Path(match[1]).unlink()


def test_a_workload_with_which_the_harness_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker refuses to process, as an adapter does that was misused."""
    code = """
import sys
from settled.proofs.hunting import worker
from settled.reference.engines.reference_engine import ReferenceEngine
from settled.reference.engines.setup import SetupError
def refuse(self, choose):
    raise SetupError("planted")
ReferenceEngine.process = refuse
sys.exit(worker.main(sys.argv[3:]))
"""

    @contextmanager
    def misused(plan: Plan, tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> Iterator[RemoteHunt]:
        yield RemoteHunt([sys.executable, "-c", code], os.environ, plan, tell, tick)

    monkeypatch.setattr(releases, "remote_hunt", misused)
    result = CliRunner().invoke(cli, [*TWO, "--workloads", "5", "--corpus", str(tmp_path)])
    assert result.exit_code == 2
    assert "planted" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"harness-failed-reference.{name}-0.json" for name in ("optimistic", "settled")
    ]


def test_what_is_stopped_before_it_began_never_begins() -> None:
    plans = plans_for(Plan(engine="reference", mix="windows", seconds=600.0), ["optimistic", "settled"])
    hunt = ReleasesHunt(plans, lambda told: None, lambda progress: None)
    hunt._stop()
    assert [result.progress.workloads for result in hunt.run()] == [0, 0]


@needs_proc
def test_an_interrupt_ends_all_and_keeps_what_was_found(tmp_path: Path) -> None:
    arguments = [*TWO, "--contract", "settled", "--seconds", "600", "--corpus", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        await_(lambda: bool(list(tmp_path.glob("*.json"))))
        workers = children_of(started.pid)
        assert len(workers) == min(2, os.cpu_count() or 1)
        started.send_signal(signal.SIGINT)
        out, stderr = started.communicate(timeout=SECONDS_MAX)
    assert (started.returncode, stderr.splitlines()[0]) == (130, b"settled hunt: interrupted")
    assert b"exit code 130" in out
    assert have_ended(workers)
    for path in tmp_path.glob("*.ndjson"):
        assert CliRunner().invoke(cli, ["check", str(path), "--contract", "settled"]).exit_code == 1


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_command(number: signal.Signals) -> None:
    arguments = ["hunt", "reference", "--releases", "settled", "--seconds", "600"]
    with subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.DEVNULL) as started:
        await_(lambda: bool(children_of(started.pid)))
        workers = children_of(started.pid)
        started.send_signal(number)
        assert started.wait(SECONDS_MAX) == -number
    await_(lambda: have_ended(workers))


def test_a_worker_ends_when_its_input_does() -> None:
    """Though somebody still reads what it says."""
    plan = json.dumps(plan_as_dict(Plan(engine="reference", mix="windows", seconds=600.0)))
    with subprocess.Popen([sys.executable, "-m", WORKER_MODULE, plan], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.stdin.close()
        assert worker.wait(SECONDS_MAX) == EXIT_ALONE
