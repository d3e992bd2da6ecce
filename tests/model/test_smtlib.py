"""The SMT-LIB text is complete: it declares what it uses, says what it needs, and two solvers read it and answer as z3's API does."""

from __future__ import annotations

import cvc5
import pytest
import z3

from settled.model.algebra import (
    BoolTerm,
    as_bool,
    bool_variable,
    both,
    either,
    function,
    implies,
    int_variable,
    maximum,
    negate,
    predicate,
)
from settled.model.search.solver import Z3, Cvc5, Status
from settled.model.smtlib import script

X, Y, Z = (int_variable(name) for name in "xyz")
P, Q = (bool_variable(name) for name in "pq")
ODD = int_variable("step.start of request 7 @2")


def chain(length: int) -> BoolTerm:
    """A term whose text is long: every part is used twice, so text that shares nothing would have 2 ** length leaves."""
    term = X
    for number in range(length):
        term = maximum(term + Y, term - number)
    return term > 0


# Source of each answer: arithmetic that a reader can do.
SETS: dict[str, tuple[dict[str, BoolTerm], Status]] = {
    "nothing": ({}, Status.SAT),
    "true": ({"yes": as_bool(True)}, Status.SAT),
    "false": ({"no": as_bool(False)}, Status.UNSAT),
    "negative constants": ({"low": X <= -3, "high": X >= -3, "sum": X + Y == -10, "rest": Y == -7}, Status.SAT),
    "negative constants, wrong sum": ({"low": X <= -3, "high": X >= -3, "sum": X + Y == -10, "rest": Y == -6}, Status.UNSAT),
    "division floors": ({"x": X == -7, "quotient": X // 2 == -4}, Status.SAT),
    "division does not truncate": ({"x": X == -7, "quotient": X // 2 == -3}, Status.UNSAT),
    "a symbolic divisor": ({"y": Y == 2, "x": X == -7, "quotient": X // Y == -4}, Status.SAT),
    "a product of symbols": ({"x": X == 3, "product": X * Y == 12, "y": Y == 5}, Status.UNSAT),
    "a predicate is a function of its argument": (
        {"at x": predicate("needed", X), "not at y": negate(predicate("needed", Y)), "same": X == Y},
        Status.UNSAT,
    ),
    "a function may take any value": ({"fixed": function("A", X) == 5, "other": function("A", X + 1) == -5}, Status.SAT),
    "truth values": ({"p": implies(P, Q), "not q": negate(Q), "p or x": either(P, X < 0), "x": X >= 0}, Status.UNSAT),
    "odd names": ({"0 <= start (of step 1)": ODD >= 0, "it's < 1": ODD < 1}, Status.SAT),
    "a long term": ({"long": chain(12), "x": X == 1, "y": Y == 1}, Status.SAT),
    "a long term that fails": ({"long": chain(12), "x": X == -20, "y": Y == -1}, Status.UNSAT),
}


@pytest.mark.parametrize("name", SETS)
def test_two_parsers_and_the_api_agree(name: str) -> None:
    formulas, status = SETS[name]
    assert Z3().check(formulas).status is status
    assert Cvc5().check(formulas).status is status
    solver = z3.Solver()
    solver.from_string(script(formulas))
    assert str(solver.check()) == status


def test_the_script_declares_each_symbol_once_and_first() -> None:
    formulas = {"a": both(X < Y, P), "b": predicate("needed", X + 1), "c": function("A", Y) == X, "d": X > 0}
    lines = script(formulas).splitlines()
    declared = [line for line in lines if line.startswith("(declare")]
    assert sorted(declared) == [
        "(declare-const |p| Bool)",
        "(declare-const |x| Int)",
        "(declare-const |y| Int)",
        "(declare-fun |A| (Int) Int)",
        "(declare-fun |needed| (Int) Bool)",
    ]
    assert lines.index(declared[-1]) < min(index for index, line in enumerate(lines) if line.startswith("(assert"))
    assert lines[-1] == "(check-sat)"


def test_each_formula_is_an_assertion_with_its_name() -> None:
    text = script({"first": X < Y, "0 <= x": X >= 0})
    assert "(assert (! (< |x| |y|) :named |h: first|))" in text
    assert "(assert (! (<= 0 |x|) :named |h: 0 <= x|))" in text


@pytest.mark.parametrize(
    ("formula", "logic"),
    [
        (X + 2 * Y < Z, "QF_UFLIA"),
        (X // 3 < Y, "QF_UFLIA"),
        (predicate("needed", X // 16 * 16), "QF_UFLIA"),
        (X * Y < Z, "QF_UFNIA"),
        (X // Y < Z, "QF_UFNIA"),
        (7 // Y < Z, "QF_UFNIA"),
    ],
    ids=str,
)
def test_the_logic_is_linear_unless_two_symbols_are_multiplied_or_divided(formula: BoolTerm, logic: str) -> None:
    text = script({"it": formula})
    assert text.startswith(f"(set-logic {logic})\n")
    assert Cvc5().check({"it": formula}).status is Status.SAT, "cvc5 refuses a script that leaves its logic"


def test_names_are_quoted() -> None:
    text = script({"a name, with (brackets)": ODD >= 0})
    assert "(declare-const |step.start of request 7 @2| Int)" in text
    assert ":named |h: a name, with (brackets)|" in text


def test_the_comment_comes_first_line_by_line() -> None:
    assert script({"x": X > 0}, comment="theorem 2\nsettled").startswith("; theorem 2\n; settled\n(set-logic")


def test_shared_terms_are_written_once() -> None:
    """Text of a graph, not of the tree that it stands for."""
    assert len(script({"long": chain(40)})) < 40 * 600


def test_z3_names_the_formulas_of_a_core_and_cvc5_answers_too() -> None:
    formulas = {"x is big": X > 10, "y is anything": Y >= Y - 1, "x is small": X < 5}
    answer = Z3().check(formulas)
    assert answer.status is Status.UNSAT
    assert answer.core == ("x is big", "x is small")
    assert Cvc5().check(formulas).status is Status.UNSAT
    assert Cvc5().version == cvc5.__version__


def test_z3_gives_values_that_satisfy() -> None:
    answer = Z3().check({"sum": X + Y == 7, "order": X < Y, "p": P == (X == 3), "x": X >= 3})
    assert answer.values == {"x": 3, "y": 4, "p": True}
