"""A hunt: workload after workload on one engine; the first violation of each key is told at once, then made small and told again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from settled.model.monitor import Verdict
from settled.model.properties import Contract
from settled.proofs.found_properties import OF_EVERY_RUN, OF_INSPECTIONS
from settled.proofs.fuzzing.coverage import Feature
from settled.proofs.hunting.budget import Budget
from settled.proofs.hunting.coverage import HuntCoverage
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import Finding, rank, shown_by, told_once
from settled.proofs.hunting.running import Run, run_workload
from settled.proofs.hunting.shrinking import Shrinker
from settled.proofs.hunting.workloads import Drawn, workloads
from settled.proofs.watching import Found, Key
from settled.reference.engines.operations import Workload
from settled.reference.engines.protocol import EngineFactory
from settled.reference.engines.setup import SetupError

INSPECTED_EVERY = 16  # one workload of so many is inspected after every operation
_SHRINKING_A_SECOND = 0.5  # seconds of shrinking for one of workloads, if they are counted
_FINDINGS_SHRUNK = 12  # so many could be made small in all the seconds of a hunt


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a hunt does: it ends after `workloads` workloads or `seconds` seconds (None: no end), and starts with number `first`.

    What is found in how many workloads depends on mix and seed alone. `contract` None: by the configuration. `properties`: violations of
    these alone count; none: of all. `workload`: this one only, from the file `path`, whatever the mix.
    """

    engine: str
    mix: str
    seed: int = 0
    first: int = 0
    workloads: int | None = None
    seconds: float | None = None
    contract: Contract | None = None
    workload: Workload | None = None
    path: str = ""
    properties: tuple[str, ...] = ()

    def counts(self, name: str) -> bool:
        """Whether a violation of this property is a finding."""
        return not self.properties or name in self.properties


class Judged(NamedTuple):
    """A verdict on a property under a contract."""

    contract: str
    property: str
    verdict: str


@dataclass(slots=True)
class Progress:
    """What a hunt has done so far. `seconds` are those of workloads, without shrinking; `seconds_to_first`: from the first workload on
    to the first finding; `showing`: how many workloads show a key; `refused`: how many setups the engine did not accept, by its words."""

    engine: str
    workloads: int = 0
    operations: int = 0
    steps: int = 0
    events: int = 0
    undecided: int = 0
    seconds: float = 0.0
    seconds_to_first: float | None = None
    findings: dict[Key, Finding] = field(default_factory=dict)
    showing: Counter[Key] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    coverage: Counter[Feature] = field(default_factory=Counter)
    verdicts: Counter[Judged] = field(default_factory=Counter)  # in workloads


@dataclass(frozen=True, slots=True)
class Told:
    """A finding. `is_shrunk`: nothing smaller will follow."""

    finding: Finding
    is_shrunk: bool


def unjudged(plan: Plan, progress: Progress) -> list[str]:
    """What is asked for by name and was checked in no workload."""
    known = {each.property for each in progress.verdicts if each.verdict != Verdict.NOT_CHECKED}
    return [name for name in dict.fromkeys(plan.properties) if name not in known]


class WorkloadFailedError(RuntimeError):
    """The harness failed with a workload, or the engine did not accept what it had accepted before."""

    def __init__(self, message: str, workload: Workload, number: int) -> None:
        super().__init__(message)
        self.workload, self.number = workload, number


class Hunt:
    """`tell` gets every finding at once, and again when it has been shrunk; `tick` is called after every workload.

    Until its seconds are over, a hunt shrinks for a third of them; what waits then stays as it was found.
    """

    def __init__(self, factory: EngineFactory, plan: Plan, tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> None:
        self.factory, self.plan, self.tell, self.tick = factory, plan, tell, tick
        self.progress = Progress(factory.name)
        self._coverage = HuntCoverage()
        self._ends: float | None = None
        self._waiting: list[Finding] = []  # told, and not shrunk yet
        self._shrinking = 0.0  # seconds
        self.progress.coverage = self._coverage.counts

    def run(self) -> Progress:
        """Hunts until it is over. An interrupt passes through once all that was found has been told.

        Raises WorkloadFailedError, MixError.
        """
        plan = self.plan
        if plan.workload is not None:
            self._take(Drawn(plan.first, plan.workload))
            return self.progress
        drawn = workloads(plan.mix, plan.seed, self.factory, first=plan.first)
        last = None if plan.workloads is None else plan.first + plan.workloads
        while last is None or plan.first + self.progress.workloads < last:
            one = next(drawn)
            if self._ends is None and plan.seconds is not None:
                self._ends = time.monotonic() + plan.seconds  # from the first workload on: importing an engine takes long
            self._take(one)
            self.tick(self.progress)
            if self._is_over:
                break
        return self.progress

    @property
    def _is_over(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    def _take(self, drawn: Drawn) -> None:
        progress, began = self.progress, time.perf_counter()
        progress.refused.update(drawn.refused)
        inspects = drawn.number % INSPECTED_EVERY == 0
        try:
            run = run_workload(self.factory, drawn.workload, contract=self.plan.contract, inspects=inspects, coverage=self._coverage)
        except (HarnessError, SetupError) as error:
            raise WorkloadFailedError(str(error), drawn.workload, drawn.number) from error
        progress.seconds += time.perf_counter() - began
        progress.workloads += 1
        progress.operations += len(run.done)
        progress.steps += run.steps
        progress.events += run.num_events
        progress.undecided += run.is_undecided
        found = {key: each for key, each in told_once(run.found).items() if self.plan.counts(key.property)}
        progress.showing.update(found.keys())
        progress.verdicts.update(
            Judged(run.contract, name, verdict.value) for name, verdict in self._verdicts(run, inspects).items() if self.plan.counts(name)
        )
        if found and progress.seconds_to_first is None:
            progress.seconds_to_first = progress.seconds
        self._tell_new(found, drawn)

    def _verdicts(self, run: Run, inspects: bool) -> dict[str, Verdict]:
        """The monitor's, and of what is asked for by name and told by no trace, too."""
        seen = dict.fromkeys((*OF_EVERY_RUN, *(OF_INSPECTIONS if inspects else ())), Verdict.HOLDS)
        return {**{name: seen.get(name, Verdict.NOT_CHECKED) for name in self.plan.properties}, **run.verdicts}

    # ---- findings ----------------------------------------------------------------------------------------------------

    def _tell_new(self, found: Mapping[Key, Found], drawn: Drawn) -> None:
        """All are told before the first is shrunk, for shrinking takes long and may be interrupted."""
        new = [each for key, each in found.items() if key not in self.progress.findings]
        self._waiting += [self._tell_first(each, drawn) for each in new]
        self._waiting.sort(key=lambda finding: rank(finding.key))
        while self._waiting and self._may_shrink():
            self._shrink(self._waiting.pop(0))

    def _may_shrink(self) -> bool:
        """A hunt that ends after some seconds spends a third of them on it."""
        return self.plan.seconds is None or not (self._is_over or self._shrinking > self.progress.seconds * _SHRINKING_A_SECOND)

    def _tell_first(self, found: Found, drawn: Drawn) -> Finding:
        plan = self.plan
        finding = Finding(
            engine=plan.engine,
            contract=plan.contract,
            key=found.key,
            sentence=found.sentence,
            workload=drawn.workload,
            mix=plan.mix,
            seed=plan.seed,
            number=drawn.number,
            path=plan.path,
        )
        finding = self._shown_by(finding, drawn.workload) or finding
        self._tell(finding, is_shrunk=False)
        return finding

    def _shrink(self, finding: Finding) -> None:
        """Tells the smallest workload, also after an interrupt."""
        began = time.perf_counter()
        budget = Budget()
        if self._ends is not None and self.plan.seconds is not None:
            budget.ends = min(self._ends, time.monotonic() + self.plan.seconds / _FINDINGS_SHRUNK)

        def show(workload: Workload, steps_max: int) -> Finding | None:
            return self._shown_by(finding, workload, budget=budget, steps_max=steps_max)

        shrinker = Shrinker(finding.workload, finding, show, self.factory.min_num_blocks, is_spent=budget.is_spent)
        try:
            if finding.trace:
                shrinker.run()
        finally:
            self._tell(self._shown_by(finding, shrinker.best) or finding, is_shrunk=True)
            self._shrinking += time.perf_counter() - began

    def _shown_by(
        self, finding: Finding, workload: Workload, *, budget: Budget | None = None, steps_max: int | None = None
    ) -> Finding | None:
        """A workload of the shrinker may be one that no user of the engine could bring about: it shows nothing."""
        try:
            return shown_by(self.factory, finding, workload, budget=budget, steps_max=steps_max)
        except (HarnessError, SetupError):
            return None

    def _tell(self, finding: Finding, *, is_shrunk: bool) -> None:
        self.progress.findings[finding.key] = finding
        self.tell(Told(finding, is_shrunk))
