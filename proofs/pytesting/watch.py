"""What the fixture `settled` gives a test: sinks that judge every event, and the verdict on all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from settled.model.events import End, Event
from settled.model.monitor import Report, Verdict
from settled.model.trace_io import TraceError
from settled.proofs.pytesting.asked import Asked
from settled.proofs.pytesting.judged import Judged
from settled.proofs.pytesting.telling import section_of, violation_text
from settled.proofs.pytesting.tracebacks import drop_own_frames

if TYPE_CHECKING:
    from settled.reference.engines.vllm.attaching import Attached

NOTHING_ATTACHED = (
    "settled: the test asked for the fixture and attached nothing: nothing was watched. "
    "settled.attach(engine) is for vLLM, settled.sink() for an engine that emits events"
)


UNEXPLAINED = (
    "the recorder cannot explain what was done with the pool, so that nothing it records is worth a verdict. "
    "A test or a scheduler that takes or frees blocks at the pool itself, past vLLM's managers, cannot be watched"
)
DEPTH_OF_A_TEST = (
    "settled.attach(scheduler, max_in_flight_steps=N) declares how many steps a test keeps in flight that drives a scheduler itself"
)


class PartlyJudgedWarning(UserWarning):
    """Nothing is violated, and a part of what a test did could not be judged."""


class Watch:
    """Watches any number of engines in one test; the first violation of any of them fails it. One test, one thread at a time."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._judged: list[Judged] = []
        self._attached: dict[int, Attached] = {}  # by the id of the scheduler, which it keeps alive
        self._failure: BaseException | None = None
        self._is_closed = False
        self._is_over = False  # then no line of the test is to be shown with a failure

    # ---- what a test calls -------------------------------------------------------------------------------------------

    def sink(self) -> Callable[[Event], None]:
        """For an engine that emits events of schema version 1 itself, the config first: call it with each."""
        judged = Judged(self._asked, len(self._judged) + 1)
        self._judged.append(judged)
        return partial(self._feed, judged)

    def attach(self, engine: Any, *, vllm_config: Any = None, max_in_flight_steps: int | None = None) -> None:
        """Records and judges a live vLLM from here to the end of the test: an LLM or LLMEngine whose engine core runs in this process,
        an EngineCore, or a Scheduler. Nothing of vLLM's classes is changed, and the instance is as it was when the test ends.

        `max_in_flight_steps`: how many steps the test itself keeps unprocessed at most, for a scheduler without engine core; by default
        what its configuration declares. Raises TypeError for anything else, ValueError if it is watched already, has requests, or keeps
        less than one step.
        """
        from settled.reference.engines.vllm.attaching import attach, scheduler_and_config

        scheduler, _ = scheduler_and_config(engine, vllm_config)
        if id(scheduler) in self._attached:
            raise ValueError("this scheduler is watched already: attach it once")
        sink = self.sink()
        try:
            self._attached[id(scheduler)] = attach(engine, sink, vllm_config=vllm_config, max_in_flight_steps=max_in_flight_steps)
        except Exception:
            self._judged.pop().close()  # nothing is attached
            raise

    # ---- what the plugin calls ---------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """The test is over and did not fail. Raises pytest's failure if a violation was swallowed, or nothing was judged."""
        if self._failure is not None:
            raise self._failure
        self._is_over = True
        self._end()
        if not self._judged:
            self._fail(NOTHING_ATTACHED)
        silent = sum(not judged.has_begun for judged in self._judged)
        if silent:
            self._fail(f"settled: {silent} of {len(self._judged)} engines emitted nothing: no event came to the sink, not even the config")
        reports = self._reports()
        for report in reports:
            if report.exit_code and not any(result.verdict is Verdict.HOLDS for result in report.properties):
                self._fail(f"settled: nothing was judged: {'; '.join(_reasons(report))}")
            if report.exit_code:
                warnings.warn(PartlyJudgedWarning(f"{self._asked.test}: {'; '.join(_reasons(report))}"), stacklevel=1)

    def explain(self, error: BaseException) -> None:
        """The test failed. If a violation came before and was swallowed, that is why: raises it."""
        if self._failure is not None and error is not self._failure:
            raise self._failure from error

    def shorten_tracebacks(self) -> None:
        """Of the failure, before it is shown."""
        if self._failure is not None:
            drop_own_frames(self._failure)

    def unsaid(self, excinfo: pytest.ExceptionInfo[BaseException] | None) -> str:
        """The failure of an engine, if the test ends by something else: unittest keeps what its test cases raise until all is over."""
        if self._failure is None or self._is_over or (excinfo is not None and excinfo.value is self._failure):
            return ""
        return str(self._failure)

    @property
    def verdict(self) -> str:
        """In a word, for a summary."""
        if any(judged.violations for judged in self._judged):
            return "violated"
        reports = self._reports()
        return "holds" if reports and not any(report.exit_code for report in reports) else "unknown"

    def sections(self) -> list[tuple[str, str]]:
        """For the report of a test that failed for another reason: where its traces are."""
        told = [section_of(judged, self._asked) for judged in self._judged if judged.has_begun and not judged.violations]
        return [("settled", "\n".join(told))] if told else []

    def close(self) -> None:
        """The engines are as they were."""
        self._is_closed = True
        for attached in reversed(self._attached.values()):
            attached.detach()
        self._attached.clear()
        for judged in self._judged:
            judged.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _feed(self, judged: Judged, event: Event) -> None:
        if self._is_closed or (self._is_over and judged.has_ended):
            return  # the test is over: what its fixtures do when they end is not judged
        if self._failure is not None:
            return  # a test that swallowed the failure goes on with an engine in mid-operation: nothing more is certain
        self._refuse_unexplained()
        wrong = ""
        try:
            violations = judged.feed(event)
        except TraceError as error:
            wrong = f"settled: the engine emits what cannot be: {error}\n{error.hint}".rstrip()
            if self._attached and "max_in_flight_steps" in error.hint:
                wrong += f"\n{DEPTH_OF_A_TEST}"
        if wrong:
            self._fail(wrong)
        if violations:
            self._fail(violation_text(judged, violations, self._asked))

    def _refuse_unexplained(self) -> None:
        """Before the next event is judged: what follows from it may look like a violation that is none, or like another one."""
        for attached in self._attached.values():
            if attached.unexplained:
                self._fail(f"settled: {UNEXPLAINED}: {attached.unexplained}")

    def _end(self) -> None:
        """Every trace gets its end, which may itself be violated: at idle nothing may be held."""
        self._refuse_unexplained()
        for attached in self._attached.values():
            attached.end()
        for judged in self._judged:
            if judged.has_begun and not judged.has_ended:
                self._feed(judged, End(idle=False))

    def _reports(self) -> list[Report]:
        return [judged.report() for judged in self._judged if judged.has_begun]

    def _fail(self, text: str) -> NoReturn:
        failure = self._failure = pytest.fail.Exception(text, pytrace=not self._is_over)

        def at_once() -> NoReturn:  # the last that pytest shows, with all its lines and arguments: of both there is little
            raise failure

        at_once()


def _reasons(report: Report) -> tuple[str, ...]:
    """Why a part, or all, was not judged."""
    return (*report.unknown, *report.remarks) or tuple(dict.fromkeys(each for result in report.properties for each in result.remarks))
