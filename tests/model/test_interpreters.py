"""The trust test: every interpreter of the graph gives a term the same value, and one that were wrong would be found.

Random terms of both sorts over integer and truth variables meet random states, 10,000 pairs in total. The plain recursive
evaluator below shares nothing with the interpreters; z3 gets the values substituted, cvc5 reads the SMT-LIB text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from math import floor
from typing import Any, cast

import cvc5
import pytest
import z3

from settled.model import interpret, smtlib
from settled.model.algebra import (
    BoolTerm,
    IntTerm,
    Term,
    as_bool,
    as_int,
    bool_variable,
    both,
    either,
    function,
    implies,
    int_variable,
    maximum,
    minimum,
    negate,
    predicate,
    select,
    show,
    subterms,
)
from settled.model.interpret import compile_terms, evaluate
from settled.model.search.solver import Z3, Cvc5, Status

State = dict[str, Any]
INTS, DIVISORS, BOOLS = ("a", "b", "c"), ("d", "e"), ("p", "q", "r")
NAMES = (*INTS, *DIVISORS, *BOOLS)
DEPTH = 6
TERMS, STATES = 250, 40  # 10,000 pairs


# ---- random terms and states -----------------------------------------------------------------------------------------


def random_int(rng: random.Random, depth: int) -> IntTerm:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice([as_int(rng.randint(-9, 9)), int_variable(rng.choice(INTS)), int_variable(rng.choice(DIVISORS))])
    less = depth - 1
    match rng.choice(["+", "-", "*", "//", "//", "max", "min", "select"]):
        case "+":
            return random_int(rng, less) + random_int(rng, less)
        case "-":
            return random_int(rng, less) - random_int(rng, less)
        case "*":
            return random_int(rng, less) * random_int(rng, min(less, 1))
        case "//":
            return random_int(rng, less) // random_divisor(rng, less)
        case "max":
            return maximum(random_int(rng, less), random_int(rng, less))
        case "min":
            return minimum(random_int(rng, less), random_int(rng, less))
        case _:
            return select(random_bool(rng, less), random_int(rng, less), random_int(rng, less))


def random_divisor(rng: random.Random, depth: int) -> IntTerm:
    """At least 1 in every state: a constant, a variable that is always positive, or a term that is."""
    return rng.choice(
        [as_int(rng.randint(1, 9)), int_variable(rng.choice(DIVISORS)), maximum(random_int(rng, min(depth, 2)), rng.randint(1, 3))]
    )


def random_bool(rng: random.Random, depth: int) -> BoolTerm:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice([bool_variable(rng.choice(BOOLS)), as_bool(rng.random() < 0.5)])
    less = depth - 1
    match rng.choice(["<", "<=", "==", "==", "!=", "and", "or", "not", "implies", "iff", "select"]):
        case "<":
            return random_int(rng, less) < random_int(rng, less)
        case "<=":
            return random_int(rng, less) <= random_int(rng, less)
        case "==":
            return random_int(rng, min(less, 2)) == random_int(rng, min(less, 1))
        case "!=":
            return random_int(rng, min(less, 2)) != random_int(rng, min(less, 1))
        case "and":
            return both(*(random_bool(rng, less) for _ in range(rng.randint(2, 3))))
        case "or":
            return either(*(random_bool(rng, less) for _ in range(rng.randint(2, 3))))
        case "not":
            return negate(random_bool(rng, less))
        case "implies":
            return implies(random_bool(rng, less), random_bool(rng, less))
        case "iff":
            return random_bool(rng, min(less, 3)) == random_bool(rng, min(less, 3))
        case _:
            return select(random_bool(rng, less), random_bool(rng, less), random_bool(rng, less))


@cache
def random_terms(seed: int, count: int) -> tuple[IntTerm | BoolTerm, ...]:
    """Terms with a symbol in them, of both sorts in turn, most of them deep."""
    rng = random.Random(seed)
    made: list[IntTerm | BoolTerm] = []
    while len(made) < count:
        make = (random_int, random_bool)[len(made) % 2]
        term = make(rng, rng.randint(2, DEPTH))
        if term.op not in ("constant", "variable") and sum(1 for _ in subterms(term)) <= 150:
            made.append(term)
    return tuple(made)


def random_states(rng: random.Random, count: int) -> list[State]:
    """Small values, so that comparisons and divisions meet their edges, and now and then a big one."""
    return [
        {name: rng.randint(-6, 6) if rng.random() < 0.9 else rng.randint(-(10**6), 10**6) for name in INTS}
        | {name: rng.randint(1, 5) for name in DIVISORS}
        | {name: rng.random() < 0.5 for name in BOOLS}
        for _ in range(count)
    ]


# ---- the evaluators --------------------------------------------------------------------------------------------------


def plain(term: Term, state: State) -> Any:
    """The value by the meaning of each operation: floor division as the floor of a fraction, a conjunction by counting."""
    if term.op == "constant":
        return term.args[0]
    if term.op == "variable":
        return state[term.args[0]]
    if term.op == "apply":
        return state[term.args[0]](plain(term.args[1], state))
    values = [plain(arg, state) for arg in term.args]
    match term.op:
        case "+":
            return sum(values)
        case "-":
            return values[0] + -values[1]
        case "*":
            return values[0] * values[1]
        case "//":
            return floor(Fraction(values[0], values[1]))
        case "<":
            return values[1] - values[0] > 0
        case "<=":
            return values[1] - values[0] >= 0
        case "==":
            return values[1] - values[0] == 0
        case "and":
            return values.count(True) == len(values)
        case "or":
            return values.count(True) > 0
        case "not":
            return values == [False]
        case "select":
            return values[1 if values[0] else 2]
    raise AssertionError(f"no meaning for {term.op}")


SYMBOLS = {name: z3.Bool(name) if name in BOOLS else z3.Int(name) for name in NAMES}


@cache
def z3_constant(value: int | bool, is_truth: bool) -> Any:
    return z3.BoolVal(value) if is_truth else z3.IntVal(value)


def z3_values(term: Term, states: list[State]) -> list[Any]:
    """The term rendered once, each state's values put in for its variables, and simplified to a constant."""
    rendered = Z3().render(term)
    names = {leaf.args[0] for leaf in subterms(term) if leaf.op == "variable"}
    values = []
    for state in states:
        pairs = [(SYMBOLS[name], z3_constant(state[name], name in BOOLS)) for name in names]
        constant = z3.simplify(z3.substitute(rendered, *pairs))
        values.append(constant.as_long() if isinstance(term, IntTerm) else z3.is_true(constant))
        assert z3.is_int_value(constant) or z3.is_true(constant) or z3.is_false(constant), f"{show(term)} stayed symbolic: {constant}"
    return values


def compiled_values(term: Term, states: list[State]) -> list[Any]:
    function = compile_terms([term], NAMES)
    return [function(*(state[name] for name in NAMES))[0] for state in states]


def plain_values(term: Term, states: list[State]) -> list[Any]:
    return [plain(term, state) for state in states]


Values = Callable[[Term, list[State]], list[Any]]


def first_difference(one: Values, other: Values, *, seed: int, terms: int = TERMS, states: int = STATES) -> str | None:
    """Two evaluators over `terms` random terms and `states` random states each; None if they never differ."""
    rng = random.Random(seed + 1)
    for term in random_terms(seed, terms):
        here = random_states(rng, states)
        for state, x, y in zip(here, one(term, here), other(term, here), strict=True):
            if x != y or type(x) is not type(y):
                return f"{show(term)} in {state}: {x!r} and {y!r}"
    return None


# ---- agreement -------------------------------------------------------------------------------------------------------


def test_the_random_terms_contain_every_operation() -> None:
    """Or the agreement below would say nothing about the one that is missing."""
    seen = [term.op for root in random_terms(1, TERMS) for term in subterms(root)]
    for op in ("constant", "variable", "+", "-", "*", "//", "<", "<=", "==", "and", "or", "not", "select"):
        assert seen.count(op) >= 40, op
    divisors = [term.args[1].op for root in random_terms(1, TERMS) for term in subterms(root) if term.op == "//"]
    assert {"constant", "variable", "select"} <= set(divisors)


def test_the_random_states_decide_both_ways() -> None:
    rng = random.Random(2)
    truths = [value for term in random_terms(1, TERMS) for value in plain_values(term, random_states(rng, 4)) if isinstance(value, bool)]
    assert 0.2 < truths.count(True) / len(truths) < 0.8


def test_z3_and_compiled_integers_agree_on_ten_thousand_pairs() -> None:
    assert TERMS * STATES == 10_000
    assert first_difference(z3_values, compiled_values, seed=1) is None


def test_compiled_integers_agree_with_the_plain_evaluator() -> None:
    assert first_difference(compiled_values, plain_values, seed=1) is None


def test_evaluate_agrees_with_the_plain_evaluator() -> None:
    by_evaluate: Values = lambda term, states: [evaluate(term, state) for state in states]  # noqa: E731
    assert first_difference(by_evaluate, plain_values, seed=5, terms=100, states=3) is None


def test_terms_compiled_together_have_the_values_of_each() -> None:
    terms = list(random_terms(6, 20))
    (state,) = random_states(random.Random(6), 1)
    together = compile_terms(terms, NAMES)(*(state[name] for name in NAMES))
    assert list(together) == [plain(term, state) for term in terms]
    assert compile_terms([], NAMES)(*(state[name] for name in NAMES)) == ()


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="b"):
        evaluate(int_variable("a") + int_variable("b"), {"a": 1})
    with pytest.raises(KeyError, match="needed"):
        evaluate(predicate("needed", 1), {})


# ---- uninterpreted symbols -------------------------------------------------------------------------------------------


def tail(position: int) -> int:
    """Some function."""
    return 3 * position - position * position


def needed(position: int) -> bool:
    """Some predicate."""
    return position % 3 == 1


def applications(seed: int, count: int) -> Iterator[BoolTerm]:
    """Equations with an uninterpreted function and a predicate, nested."""
    rng = random.Random(seed)
    for _ in range(count):
        inner = function("tail", random_int(rng, 2))
        outer = function("tail", inner + random_int(rng, 1)) + random_int(rng, 2)
        yield either(both(predicate("needed", inner), outer < random_int(rng, 2)), predicate("needed", outer) == random_bool(rng, 2))


def test_a_callable_and_facts_about_a_symbol_say_the_same() -> None:
    """z3 knows of the symbols nothing but their values at the arguments that occur; that decides the term as the callable does."""
    solver = Z3()
    truths = []
    rng = random.Random(7)
    for term in applications(7, 60):
        (state,) = random_states(rng, 1)
        values = {**state, "tail": tail, "needed": needed}
        value = evaluate(term, values)
        assert value == plain(term, values)
        facts: dict[str, BoolTerm] = {}
        for name in state:
            symbol = bool_variable(name) if name in BOOLS else int_variable(name)
            facts[name] = cast("BoolTerm", symbol == state[name])
        for use in subterms(term):
            if use.op == "apply":
                at = plain(use.args[1], values)
                fact = function("tail", at) == tail(at) if use.args[0] == "tail" else predicate("needed", at) == needed(at)
                facts[f"{use.args[0]} at {at}"] = fact
        assert solver.check({**facts, "as evaluated": term == value}).status is Status.SAT, show(term)
        assert solver.check({**facts, "not as evaluated": term != value}).status is Status.UNSAT, show(term)
        truths.append(value)
    assert set(truths) == {True, False}


# ---- cvc5 ------------------------------------------------------------------------------------------------------------


def cvc5_difference(*, seed: int, pairs: int) -> str | None:
    """The first term that cvc5, reading the SMT-LIB text, gives another value than the integers do."""
    rng = random.Random(seed)
    solver = Cvc5()
    for term in random_terms(seed, pairs):
        (state,) = random_states(rng, 1)
        facts = {
            name: cast("BoolTerm", (bool_variable(name) if name in BOOLS else int_variable(name)) == state[name])
            for name in NAMES
            if any(leaf.op == "variable" and leaf.args[0] == name for leaf in subterms(term))
        }
        value = plain(term, state)
        status = solver.check({**facts, "another value": cast("BoolTerm", term != value)}).status
        if status is not Status.UNSAT:
            return f"{show(term)} in {state} is {value!r}: cvc5 answers {status}"
    return None


def test_cvc5_agrees_through_the_smtlib_text() -> None:
    assert cvc5.__version__
    assert cvc5_difference(seed=8, pairs=120) is None


# ---- the checker is checked ------------------------------------------------------------------------------------------

PYTHON_FAULTS: dict[str, Callable[[str, list[str]], str | None]] = {
    "division truncates": lambda op, args: f"(abs({args[0]}) // {args[1]} * (1 if {args[0]} >= 0 else -1))" if op == "//" else None,
    "a strict comparison is not": lambda op, args: f"{args[0]} <= {args[1]}" if op == "<" else None,
    "a comparison is strict": lambda op, args: f"{args[0]} < {args[1]}" if op == "<=" else None,
    "a difference is reversed": lambda op, args: f"{args[1]} - {args[0]}" if op == "-" else None,
    "a selection is reversed": lambda op, args: f"{args[2]} if {args[0]} else {args[1]}" if op == "select" else None,
    "only two are joined": lambda op, args: " and ".join(args[:2]) if op == "and" else None,
}


@pytest.mark.parametrize("fault", PYTHON_FAULTS)
def test_a_wrong_python_interpreter_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = interpret._expression, PYTHON_FAULTS[fault]

    def faulty(term: Term, names: Any, code: Any) -> str:
        args = [code[arg.index] for arg in term.args if isinstance(arg, Term)]
        return wrong(term.op, args) or right(term, names, code)

    monkeypatch.setattr(interpret, "_expression", faulty)
    assert first_difference(z3_values, compiled_values, seed=1) is not None


Z3_FAULTS: dict[str, Callable[[str, list[Any]], Any]] = {
    "division truncates": lambda op, args: z3.If(args[0] >= 0, args[0] / args[1], -(-args[0] / args[1])) if op == "//" else None,
    "a strict comparison is not": lambda op, args: args[0] <= args[1] if op == "<" else None,
    "or is exclusive": lambda op, args: z3.Xor(args[0], args[1]) if op == "or" and len(args) == 2 else None,
    "not is lost": lambda op, args: args[0] if op == "not" else None,
}


@pytest.mark.parametrize("fault", Z3_FAULTS)
def test_a_wrong_z3_renderer_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = Z3._expression, Z3_FAULTS[fault]

    def faulty(self: Z3, term: Term, args: list[Any]) -> Any:
        found = wrong(term.op, args)
        return right(self, term, args) if found is None else found

    monkeypatch.setattr(Z3, "_expression", faulty)
    assert first_difference(z3_values, compiled_values, seed=1) is not None


@pytest.mark.parametrize(("op", "wrong"), [("//", "mod"), ("==", "distinct"), ("and", "or")])
def test_a_wrong_smtlib_renderer_is_found(op: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(smtlib._SMTLIB, op, wrong)
    assert cvc5_difference(seed=8, pairs=120) is not None
