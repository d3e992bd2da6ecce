"""A hunt in the environment of an engine: `python -m settled.proofs.hunting.worker PLAN`, the plan as JSON, tells line by line on standard
output what it does, as long as its standard input is open. It needs neither z3 nor rich nor click."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, TextIO

from settled.proofs.hunting.campaign import Hunt, Plan, Progress, Told, WorkloadFailedError
from settled.proofs.hunting.engines import EngineError, factory_of, parse_engine
from settled.proofs.hunting.finding import finding_as_dict
from settled.proofs.hunting.garbage import collect_seldom
from settled.proofs.hunting.messages import DONE, FAILED, FOUND, PROGRESS, SHRUNK, plan_of, progress_as_dict
from settled.proofs.hunting.plain import workload_as_dict
from settled.proofs.hunting.workloads import MixError
from settled.reference.engines.setup import SetupError

EXIT_DONE, EXIT_FAILED, EXIT_ALONE = 0, 2, 3
_HINT_BROKEN = "settled engines list says which releases can be imported; settled engines remove and install bring one anew"
_SECONDS_BETWEEN = 0.25  # two reports of progress


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: the hunt ended as planned, or by an interrupt; 2: the harness failed, and a line says how; 3: who started it is gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the shell put us in the background
    Thread(target=_end_alone, name="settled-parent-watcher", daemon=True).start()
    return Worker(plan_of(json.loads(arguments[0])), _own_output()).run()


def _own_output() -> TextIO:
    """Standard output for us alone: what an engine prints goes to standard error."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out


def _end_alone() -> None:
    """Ends the process at once when standard input does: whoever started it has ended, even if by a signal that nobody can handle."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(EXIT_ALONE)


class Worker:
    """Runs one plan and tells about it."""

    def __init__(self, plan: Plan, out: TextIO) -> None:
        self.plan, self.out = plan, out
        self._next_report = 0.0

    def run(self) -> int:
        try:
            hunt = Hunt(factory_of(parse_engine(self.plan.engine)), self.plan, self._tell, self._tick)
            with suppress(KeyboardInterrupt):  # all that was found has been told
                hunt.run()
        except WorkloadFailedError as error:
            self._say(PROGRESS, progress=progress_as_dict(hunt.progress))
            self._say(FAILED, message=str(error), number=error.number, workload=workload_as_dict(error.workload))
            return EXIT_FAILED
        except ImportError as error:
            self._say(FAILED, message=f"cannot be imported: {type(error).__name__}: {error}", hint=_HINT_BROKEN)
            return EXIT_FAILED
        except (EngineError, MixError, SetupError) as error:
            self._say(FAILED, message=str(error), hint=getattr(error, "hint", ""))
            return EXIT_FAILED
        self._say(DONE, progress=progress_as_dict(hunt.progress))
        return EXIT_DONE

    def _tell(self, told: Told) -> None:
        self._say(SHRUNK if told.is_shrunk else FOUND, finding=finding_as_dict(told.finding))

    def _tick(self, progress: Progress) -> None:
        if progress.workloads == 1:  # the engine is imported
            collect_seldom()
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + _SECONDS_BETWEEN
            self._say(PROGRESS, progress=progress_as_dict(progress))

    def _say(self, what: str, **values: Any) -> None:
        self.out.write(json.dumps({"tell": what, **values}) + "\n")
        self.out.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
