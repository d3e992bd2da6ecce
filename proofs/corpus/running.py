"""Runs scenarios: the monitor judges what came of the broken choice, and of the repaired one, without being told which is which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from settled.model.events import Config, Event
from settled.model.monitor import Report, Violation
from settled.model.monitor.report import EXIT_HOLDS
from settled.model.properties import Property
from settled.model.specs import KVCacheSpec, SlidingWindowSpec
from settled.model.trace_io import TraceError
from settled.proofs.corpus.loading import CorpusError
from settled.proofs.corpus.rows import Case, Mark, Recording, Scenario, Script
from settled.proofs.corpus.worker import as_the_worker_saw_it
from settled.proofs.refutations import judge
from settled.reference.config import ConfigError
from settled.reference.replay import ReplayError, replay


class Status(StrEnum):
    """What became of a row."""

    CAUGHT = "caught"  # by the property that each of its scenarios names, and nothing is found in the twins
    MISSED = "missed"  # some scenario does not violate its property
    TWIN_NOT_CLEAN = "twin not clean"  # a repaired twin violates something, or could not be judged
    NOT_ENCODED = "not encoded"  # there is a reason
    NOT_CATCHABLE = "not catchable"  # the index says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A scenario that was run. `violation`: the first of the property that it names; `found`: all properties violated."""

    scenario: Scenario
    violation: Violation | None
    found: tuple[Property, ...]
    twin: Report

    @property
    def status(self) -> Status:
        if self.violation is None:
            return Status.MISSED
        return Status.TWIN_NOT_CLEAN if self.twin_problems else Status.CAUGHT

    @property
    def twin_problems(self) -> tuple[str, ...]:
        """Why the twin is not clean, if it is not: what is violated, or what could not be decided."""
        if self.twin.exit_code == EXIT_HOLDS:
            return ()
        violated = [violation.sentence() for result in self.twin.properties for violation in result.violations[:1]]
        return tuple(violated) or (*self.twin.unknown, *self.twin.remarks) or ("no property was checked",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a row and its scenarios."""

    case: Case
    tried: tuple[Tried, ...]

    @property
    def status(self) -> Status:
        if self.case.row.mark is Mark.NOT_CATCHABLE and not self.tried:
            return Status.NOT_CATCHABLE
        if not self.tried:
            return Status.NOT_ENCODED
        for status in (Status.MISSED, Status.TWIN_NOT_CLEAN):
            if any(tried.status is status for tried in self.tried):
                return status
        return Status.CAUGHT


def run_cases(cases: Iterable[Case]) -> list[Outcome]:
    """Runs rows, in order. Raises CorpusError for a scenario that cannot be run."""
    return [Outcome(case=case, tried=tuple(try_scenario(scenario) for scenario in case.scenarios)) for case in cases]


def try_scenario(scenario: Scenario) -> Tried:
    """Runs both, judges both. Raises CorpusError."""
    broken = _judged(scenario, scenario.broken)
    first = next(iter(broken.result(scenario.property).violations), None)
    found = tuple(result.property for result in broken.properties if result.count)
    return Tried(scenario=scenario, violation=first, found=found, twin=_judged(scenario, scenario.repaired))


def _judged(scenario: Scenario, played: Script | Recording) -> Report:
    try:
        return judge(trace_of(played), scenario.contract)
    except (ReplayError, ConfigError, TraceError, ValueError) as error:
        which = "repaired" if played is scenario.repaired else "broken"
        raise CorpusError(f"{scenario.source}: {which}", f"cannot be run: {error}") from error


def trace_of(played: Script | Recording) -> list[Event]:
    """The trace that the monitor judges: as it was recorded, or what the reference engine and the worker make of the decisions.

    Raises ReplayError, ConfigError or ValueError for decisions that cannot be taken.
    """
    if isinstance(played, Recording):
        return list(played.events)
    choice = played.choice
    config = played.events[0]
    assert isinstance(config, Config)
    engine_config = replace(config, groups=tuple(_retaining(spec, choice.retained) for spec in config.groups))
    told = replay([engine_config, *played.events[1:]], choice.discipline)
    seen = as_the_worker_saw_it(told, choice, played.dummy_runs)
    return _as_the_kernel_reads(seen, config.groups, played.over_read)


def _retaining(spec: KVCacheSpec, tokens: int) -> KVCacheSpec:
    if not tokens:
        return spec
    if not isinstance(spec, SlidingWindowSpec):
        raise ValueError(f"tokens below a window are retained, but the group's kind is {spec.kind!r}")
    return replace(spec, extra_retained=spec.extra_retained + tokens)


def _as_the_kernel_reads(events: Iterable[Event], groups: tuple[KVCacheSpec, ...], over_read: int) -> list[Event]:
    """The trace whose groups say what the kernel reads, rather than what the mask lets it use; the engine's caps stay."""
    if not over_read:
        return list(events)
    config, *rest = events
    assert isinstance(config, Config)
    read = tuple(_reading(spec, over_read, ran.cap) for spec, ran in zip(groups, config.groups, strict=True))
    return [replace(config, groups=read), *rest]


def _reading(spec: KVCacheSpec, over_read: int, cap: int | None) -> KVCacheSpec:
    if not isinstance(spec, SlidingWindowSpec):
        raise ValueError(f"a kernel reads below a window, but the group's kind is {spec.kind!r}")
    return replace(spec, window=spec.window + over_read, cap=cap)
