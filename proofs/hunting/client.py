"""The other side of a worker: starts it, and hands on what it tells as if the hunt ran here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from settled.proofs.hunting.campaign import Plan, Progress, Told, WorkloadFailedError
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import finding_of
from settled.proofs.hunting.messages import DONE, FAILED, FOUND, PROGRESS, SHRUNK, plan_as_dict, take_progress
from settled.proofs.hunting.plain import workload_of

WORKER_MODULE = "settled.proofs.hunting.worker"
_SECONDS_TO_END = 10.0  # after an interrupt


class RemoteHunt:
    """A hunt in another interpreter: `python` is its command, `environment` its variables. Used like a Hunt."""

    def __init__(
        self,
        python: Sequence[str],
        environment: Mapping[str, str],
        plan: Plan,
        tell: Callable[[Told], None],
        tick: Callable[[Progress], None],
    ) -> None:
        self.command = [*python, "-m", WORKER_MODULE, json.dumps(plan_as_dict(plan))]
        self.environment, self.plan, self.tell, self.tick = environment, plan, tell, tick
        self.progress = Progress(plan.engine)
        self._is_done = self._has_failed = self._is_stopped = False
        self._worker: subprocess.Popen[str] | None = None

    def run(self) -> Progress:
        """Hunts until it is over. An interrupt passes through once all that was found has been told.

        Raises WorkloadFailedError, HarnessError where the worker ends without a word.
        """
        log = _new_log()
        worker = self._worker = self._started(log)
        if self._is_stopped:
            self.stop()
        try:
            self._listen(worker)
        except KeyboardInterrupt:
            self.stop()
            self._listen(worker)
            raise
        finally:
            _end(worker)
            if self._is_done or self._has_failed or self._is_stopped:
                log.unlink()
        if not self._is_done and not self._is_stopped:
            raise HarnessError(f"{self.plan.engine}: the worker {_how_it_ended(worker)}{_last_words(log)}", f"all that it said is in {log}")
        return self.progress

    def stop(self) -> None:
        """Also from another thread: the worker tells the smallest that it knows, and ends; `run` returns what it told.

        One that does not end is killed, for an engine may swallow the interrupt.
        """
        self._is_stopped = True
        if self._worker is not None:
            self._worker.send_signal(signal.SIGINT)
            killing = Timer(_SECONDS_TO_END, self._worker.kill)
            killing.daemon = True
            killing.start()

    def _started(self, log: Path) -> subprocess.Popen[str]:
        """What the worker and its engine print goes to `log`."""
        with log.open("wb") as errors:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,  # nothing is written to it; it closes when we end, however we end, and then the worker ends
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(self.environment),
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C goes to us alone: we decide
            )

    def _listen(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        what = told["tell"]
        if what in (FOUND, SHRUNK):
            finding = finding_of(told["finding"])
            self.progress.findings[finding.key] = finding
            self.tell(Told(finding, is_shrunk=what == SHRUNK))
        elif what in (PROGRESS, DONE):
            take_progress(self.progress, told["progress"])
            self._is_done = what == DONE
            self.tick(self.progress)
        else:
            assert what == FAILED
            self._has_failed = True
            if "workload" in told:
                raise WorkloadFailedError(told["message"], workload_of(told["workload"]), told["number"])
            raise HarnessError(f"{self.plan.engine}: {told['message']}", told["hint"])


def _new_log() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="settled-worker-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def _end(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    assert worker.stdin is not None
    worker.stdout.close()
    try:
        worker.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    worker.stdin.close()  # not before: it would end by that, and not as it does


def _how_it_ended(worker: subprocess.Popen[str]) -> str:
    code = worker.returncode
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _last_words(log: Path) -> str:
    """The last line of what a worker said: of a traceback, that is the error."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""
