"""Induction: what must hold for a set of named conjuncts to be an invariant, as obligations that a solver decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from settled.model.algebra import BoolTerm, both, negate, subterms
from settled.model.kinds import Axiom
from settled.model.search.solver import Answer, Solver, Status

Named = Mapping[str, BoolTerm]


@dataclass(frozen=True)
class Obligation:
    """Either a claim, that the hypotheses imply every conclusion, or a cover (no conclusions), that they can hold at once."""

    name: str
    hypotheses: Named
    conclusions: Named | None = None

    @property
    def is_cover(self) -> bool:
        return self.conclusions is None

    def query(self) -> dict[str, BoolTerm]:
        """The formulas whose satisfiability decides it: a claim is proved by unsat, a cover reached by sat."""
        formulas = dict(self.hypotheses)
        if self.conclusions is not None:
            formulas["not the conclusion"] = negate(both(*self.conclusions.values()))
        return formulas


@dataclass(frozen=True)
class Verdict:
    """What a solver made of an obligation. `failed`: the conclusions that the solver's state violates."""

    obligation: Obligation
    answer: Answer
    failed: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """proved, refuted, reachable, unreachable or unknown."""
        if self.answer.status is Status.UNKNOWN:
            return "unknown"
        if self.obligation.is_cover:
            return "reachable" if self.answer.status is Status.SAT else "unreachable"
        return "proved" if self.answer.status is Status.UNSAT else "refuted"

    @property
    def holds(self) -> bool:
        return self.word in ("proved", "reachable")


def decide(obligation: Obligation, solver: Solver) -> Verdict:
    """Asks the solver; for a refuted claim asks again which of the conclusions fail."""
    answer = solver.check(obligation.query())
    if obligation.conclusions is None or answer.status is not Status.SAT or len(obligation.conclusions) == 1:
        failed = tuple(obligation.conclusions or ()) if answer.status is Status.SAT else ()
        return Verdict(obligation, answer, failed)
    failed = tuple(
        name
        for name, conclusion in obligation.conclusions.items()
        if solver.check({**obligation.hypotheses, "not the conclusion": negate(conclusion)}).status is not Status.UNSAT
    )
    return Verdict(obligation, answer, failed)


def with_axiom(obligations: Iterable[Obligation], axiom: Axiom | None) -> list[Obligation]:
    """Adds an axiom about an uninterpreted symbol to the hypotheses, for every pair of arguments that an obligation mentions.

    It keeps the queries free of quantifiers, and a proof from the instances is one from the universal axiom. A refutation is one as well
    where a model of the instances extends to all integers: a predicate that shrinks holds wherever it holds at some later mentioned
    point, and a function that grows by at least one a step is continued in steps of one, the last step before a mentioned point taking
    the rest. (Chunks with gaps between them do not extend, see `AnyChunks`.)
    """
    if axiom is None:
        return list(obligations)
    return [
        replace(obligation, hypotheses={**obligation.hypotheses, axiom.name: _instances(obligation, axiom)}) for obligation in obligations
    ]


def _instances(obligation: Obligation, axiom: Axiom) -> BoolTerm:
    terms = subterms(*obligation.query().values())
    arguments = [term.args[1] for term in terms if term.op == "apply" and term.args[0] == axiom.symbol]
    return both(*(axiom.of_pair(x, y) for x in arguments for y in arguments))


def with_covers(obligations: Sequence[Obligation]) -> list[Obligation]:
    """Adds a cover to every claim that has none: hypotheses that cannot hold at once would prove anything."""
    covered = {obligation.name for obligation in obligations if obligation.is_cover}
    missing = [o for o in obligations if not o.is_cover and f"cover: {o.name}" not in covered]
    return [*obligations, *(Obligation(f"cover: {claim.name}", claim.hypotheses) for claim in missing)]


@dataclass(frozen=True)
class Transition:
    """One action with its guard, and the invariant of the state that it leads to."""

    name: str
    guard: Named
    conjuncts_after: Named


def inductive(
    *, assumptions: Named, initial: Named, conjuncts: Named, transitions: Sequence[Transition], properties: Named
) -> list[Obligation]:
    """The obligations: the initial state satisfies the conjuncts, every action keeps them and can happen, they imply the properties."""
    before = {**assumptions, **conjuncts}
    obligations = [Obligation("initial state", assumptions, initial)]
    for transition in transitions:
        hypotheses = {**before, **{f"guard: {name}": term for name, term in transition.guard.items()}}
        obligations.append(Obligation(transition.name, hypotheses, transition.conjuncts_after))
        obligations.append(Obligation(f"cover: {transition.name}", hypotheses))
    obligations += [Obligation(name, before, {name: term}) for name, term in properties.items()]
    return obligations
