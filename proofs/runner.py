"""Runs theorems: a row per obligation and solver, as data; `report/` prints it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from settled.model.disciplines import OPTIMISTIC, RIGHT
from settled.model.search.induction import Obligation, Verdict, decide, with_covers
from settled.model.search.solver import Z3, Cvc5, Status
from settled.proofs import found
from settled.proofs.theorem import Killer, Theorem

Solvers = Sequence[Z3 | Cvc5]


class Exit(IntEnum):
    """Exit codes of the command line."""

    HOLDS = 0
    VIOLATED = 1
    BAD_INPUT = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class Row:
    """One obligation: what each solver says of it, and of its cover if it has one."""

    theorem: str
    part: str
    name: str
    verdicts: dict[str, Verdict]
    covers: dict[str, Verdict] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in [*self.verdicts.values(), *self.covers.values()])

    @property
    def word(self) -> str:
        """What the solvers agree on; both words if they do not."""
        return " / ".join(dict.fromkeys(verdict.word for verdict in self.verdicts.values()))

    @property
    def cover_word(self) -> str:
        return " / ".join(dict.fromkeys(verdict.word for verdict in self.covers.values()))

    @property
    def seconds(self) -> float:
        return sum(verdict.answer.seconds for verdict in [*self.verdicts.values(), *self.covers.values()])

    @property
    def core(self) -> tuple[str, ...]:
        """The hypotheses that the proof used, by name (z3's unsat core)."""
        return next((verdict.answer.core for verdict in self.verdicts.values() if verdict.answer.core), ())

    @property
    def exit(self) -> Exit:
        words = [verdict.word for verdict in [*self.verdicts.values(), *self.covers.values()]]
        if any(word in ("unknown", "unreachable") for word in words) or len(dict.fromkeys(v.word for v in self.verdicts.values())) > 1:
            return Exit.UNKNOWN
        return Exit.VIOLATED if "refuted" in words else Exit.HOLDS


@dataclass(frozen=True)
class KillerRow:
    """A killer at work: it is expected to refute one obligation at one conjunct; anything else leaves the theorem untested."""

    theorem: str
    killer: Killer
    verdicts: dict[str, Verdict]

    @property
    def kills(self) -> bool:
        return all(verdict.word == "refuted" and self.killer.conjunct in verdict.failed for verdict in self.verdicts.values())

    @property
    def exit(self) -> Exit:
        return Exit.HOLDS if self.kills else Exit.UNKNOWN


@dataclass(frozen=True)
class FoundRow:
    """What Spacer found: the conjuncts of its invariant, and the rows that verify it again; or that it found none."""

    conjuncts: tuple[str, ...]
    seconds: float
    killer_seconds: float
    is_unsafe_when_optimistic: bool
    reason: str

    @property
    def exit(self) -> Exit:
        return Exit.HOLDS if self.conjuncts and self.is_unsafe_when_optimistic else Exit.UNKNOWN


def prove(theorem: Theorem, solvers: Solvers) -> Iterator[Row | KillerRow]:
    """Decides every obligation of a theorem, then its killers."""
    for part in theorem.parts:
        yield from decide_all(theorem.key, part.name, part.build(part.discipline), solvers)
    for killer in theorem.killers:
        stated = {obligation.name: obligation for obligation in theorem.part(killer.part).build(killer.discipline)}
        yield KillerRow(theorem.key, killer, {solver.name: decide(stated[killer.obligation], solver) for solver in solvers})


def decide_all(theorem: str, part: str, obligations: Sequence[Obligation], solvers: Solvers) -> Iterator[Row]:
    """A row per claim, its cover beside it. A cover that was only added against contradictory hypotheses is one solver's business."""
    stated = {obligation.name for obligation in obligations}
    obligations = with_covers(obligations)
    covers = {obligation.name.removeprefix("cover: "): obligation for obligation in obligations if obligation.is_cover}
    claims = {obligation.name: obligation for obligation in obligations if not obligation.is_cover}
    assert len(covers) + len(claims) == len(obligations), f"{theorem}, {part}: two obligations have the same name"
    for name in dict.fromkeys([*claims, *covers]):
        yield Row(
            theorem,
            part,
            name,
            {solver.name: decide(claims[name], solver) for solver in solvers} if name in claims else {},
            {solver.name: decide(covers[name], solver) for solver in (solvers if f"cover: {name}" in stated else solvers[:1])},
        )


def find_and_verify(solvers: Solvers) -> Iterator[FoundRow | Row]:
    """Spacer's own invariant for the settled basis; that it finds none for the optimistic one; and plain queries for the first."""
    system = found.core(RIGHT)
    answer = found.ask_spacer(system)
    began = time.perf_counter()
    killed = found.ask_spacer(found.core(OPTIMISTIC)).status is Status.SAT
    seconds = time.perf_counter() - began
    shown = tuple(repr(conjunct) for conjunct in answer.conjuncts)
    yield FoundRow(shown, answer.seconds, seconds, killed, answer.reason or str(answer.status))
    yield from decide_all("found", "Spacer's invariant", found.verify(system, answer.conjuncts), solvers)
