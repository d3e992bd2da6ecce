"""Divisions by symbols, named: `x // B` becomes a variable q with `q * B <= x < q * B + B`.

For a divisor of at least 1 there is exactly one such q, so an obligation with quotients named says the same as before. Solvers are then
asked about products of variables alone, and a proof can say which facts about products it uses (`ordered`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from settled.model.algebra import (
    BoolTerm,
    Int,
    IntTerm,
    Term,
    as_int,
    both,
    constant_value,
    either,
    int_variable,
    show,
    subterms,
    with_arguments,
)
from settled.model.search.induction import Named, Obligation

DEFINED = "quotients"


def with_quotients(obligations: Iterable[Obligation]) -> list[Obligation]:
    """Names every quotient whose divisor is not a constant; their definitions are one hypothesis more. Divisors must be at least 1 by
    the other hypotheses."""
    return [_named(obligation) for obligation in obligations]


def _named(obligation: Obligation) -> Obligation:
    conclusions = obligation.conclusions or {}
    new: dict[int, Term] = {}
    defined: list[BoolTerm] = []
    for term in subterms(*obligation.hypotheses.values(), *conclusions.values()):
        made = with_arguments(term, new)
        if made.op == "//" and constant_value(made.args[1]) is None:
            dividend, divisor = made.args
            made = int_variable(show(term))
            defined.append(both(made * divisor <= dividend, dividend < made * divisor + divisor))
        new[term.index] = made

    def renamed(formulas: Named) -> dict[str, BoolTerm]:
        return {name: new[formula.index] for name, formula in formulas.items()}  # type: ignore[misc]

    return replace(
        obligation,
        hypotheses={**renamed(obligation.hypotheses), DEFINED: both(*defined)},
        conclusions=None if obligation.conclusions is None else renamed(conclusions),
    )


def ordered(size: Int, *pairs: tuple[Int, Int]) -> BoolTerm:
    """Multiples of a size of at least 1 are ordered as their factors, for these pairs of factors."""
    return both(*(_ordered(as_int(n), as_int(m), as_int(size)) for n, m in pairs))


def _ordered(n: IntTerm, m: IntTerm, size: IntTerm) -> BoolTerm:
    return either(both(n <= m, n * size <= m * size), both(m < n, m * size + size <= n * size))
