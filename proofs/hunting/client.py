"""The other side of a worker: starts it, and hands on what it tells as if the hunt ran here."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from settled.proofs.hunting.campaign import Plan, Progress, Told, WorkloadFailedError
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import finding_of
from settled.proofs.hunting.messages import DONE, FAILED, FOUND, PROGRESS, SHRUNK, plan_as_dict, take_progress
from settled.proofs.hunting.plain import workload_of

WORKER_MODULE = "settled.proofs.hunting.worker"
_SECONDS_TO_END = 10.0  # after an interrupt
_LINES_OF_STDERR = 15


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
        self._is_done = False
        self._worker: subprocess.Popen[str] | None = None

    def run(self) -> Progress:
        """Hunts until it is over. An interrupt passes through once all that was found has been told.

        Raises WorkloadFailedError, HarnessError where the worker ends without a word.
        """
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            worker = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(self.environment),
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C goes to us alone: we decide
            )
            self._worker = worker
            try:
                self._listen(worker)
            except KeyboardInterrupt:
                self._interrupt(worker)
                raise
            finally:
                _end(worker)
            if not self._is_done:
                raise HarnessError(f"{self.plan.engine}: the worker ended with code {worker.returncode}:\n{_last_lines(errors)}")
        return self.progress

    def stop(self) -> None:
        """From another thread: the worker tells the smallest that it knows, and ends; `run` returns what it told."""
        if self._worker is not None:
            self._worker.send_signal(signal.SIGINT)

    def _listen(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            self._take(json.loads(line))

    def _interrupt(self, worker: subprocess.Popen[str]) -> None:
        """The worker tells the smallest that it knows, and ends."""
        worker.send_signal(signal.SIGINT)
        self._listen(worker)

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
        elif what == FAILED and "workload" in told:
            raise WorkloadFailedError(told["message"], workload_of(told["workload"]), told["number"])
        else:
            raise HarnessError(f"{self.plan.engine}: {told['message']}")


def _end(worker: subprocess.Popen[str]) -> None:
    if worker.stdout is not None:
        worker.stdout.close()
    try:
        worker.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def _last_lines(errors: IO[str]) -> str:
    errors.seek(0)
    return "".join(errors.readlines()[-_LINES_OF_STDERR:]).strip()
