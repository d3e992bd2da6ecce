"""Terms: equal ones are one object, constants fold as Python does, and nothing about a symbol is decided silently."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest

from settled.model.algebra import (
    BoolTerm,
    IntTerm,
    as_bool,
    as_int,
    bool_variable,
    both,
    constant_value,
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
    substitute,
    subterms,
)
from settled.model.interpret import evaluate

X, Y, Z = (int_variable(name) for name in "xyz")
P, Q = (bool_variable(name) for name in "pq")
NUMBERS = (-7, -2, -1, 0, 1, 2, 3, 7)


# ---- one object a term -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: int_variable("x"),
        lambda: as_int(12),
        lambda: as_bool(True),
        lambda: X + Y * 2,
        lambda: X // 3 - Y,
        lambda: both(X < Y, P),
        lambda: select(P, X, Y),
        lambda: maximum(X, Y),
        lambda: predicate("needed", X + 1),
        lambda: function("A", X),
    ],
)
def test_equal_terms_are_one_object(build: Callable[[], Any]) -> None:
    assert build() is build()


def test_different_terms_are_different_objects() -> None:
    """Among them the pairs that an identity of Python values would confuse: 1 and True, a name as integer and as truth value."""
    terms: list[IntTerm | BoolTerm] = [
        *(as_int(number) for number in NUMBERS),
        as_bool(True),
        as_bool(False),
        X,
        bool_variable("x"),
        function("x", X),
        predicate("x", X),
        X + Y,
        Y + X,
        X - Y,
        X < Y,
        X <= Y,
        X == Y,
    ]
    assert len({term.index for term in terms}) == len(terms)


def test_a_named_number_is_the_number() -> None:
    """An IntEnum prints as its name: kept in a term, it would be a second 0, and no source text for an interpreter."""

    class Named(IntEnum):
        NOTHING = 0

    assert as_int(Named.NOTHING) is as_int(0)
    assert (X == Named.NOTHING) is (X == 0)
    assert evaluate(X == Named.NOTHING, {"x": 0}) is True


def test_terms_are_keys_of_a_set() -> None:
    assert len({hash(X + 1), hash(X + 1), hash(X + 2)}) == 2


# ---- constants fold --------------------------------------------------------------------------------------------------

PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@pytest.mark.parametrize("name", PYTHON)
def test_constants_fold_to_what_python_says(name: str) -> None:
    apply = PYTHON[name]
    for left, right in itertools.product(NUMBERS, NUMBERS):
        for folded in (apply(as_int(left), as_int(right)), apply(as_int(left), right), apply(left, as_int(right))):
            value = constant_value(folded)
            assert value == apply(left, right)
            assert type(value) is type(apply(left, right))


def test_floor_division_of_constants_floors() -> None:
    for left, right in itertools.product(NUMBERS, [number for number in NUMBERS if number >= 1]):
        assert constant_value(as_int(left) // right) == left // right
        assert constant_value(left // as_int(right)) == left // right


def test_maximum_minimum_and_select_of_constants_fold() -> None:
    for left, right in itertools.product(NUMBERS, NUMBERS):
        assert constant_value(maximum(left, right)) == max(left, right)
        assert constant_value(minimum(left, right)) == min(left, right)
        assert constant_value(select(left < right, left, right)) == min(left, right)


def test_truth_values_fold() -> None:
    for left, right in itertools.product((False, True), repeat=2):
        assert constant_value(both(left, right)) == (left and right)
        assert constant_value(either(left, right)) == (left or right)
        assert constant_value(implies(left, right)) == (not left or right)
        assert constant_value(as_bool(left) == right) == (left == right)
        assert constant_value(as_bool(left) != right) == (left != right)
        assert constant_value(negate(left)) == (not left)
        assert constant_value(select(left, as_bool(right), False)) == (left and right)


def test_all_of_nothing_is_true_and_any_of_nothing_is_false() -> None:
    assert constant_value(both()) is True
    assert constant_value(either()) is False


def test_a_decided_part_decides_or_leaves_the_whole() -> None:
    assert both(P, True) is P
    assert either(P, False) is P
    assert both(P, P) is P
    assert constant_value(both(P, False)) is False
    assert constant_value(either(P, True)) is True
    assert X + 0 is X
    assert 0 + X is X
    assert X - 0 is X
    assert X * 1 is X
    assert X // 1 is X
    assert constant_value(X * 0) == 0
    assert constant_value(X <= X) is True
    assert constant_value(X < X) is False
    assert select(P, X, X) is X


def test_a_symbol_has_no_constant_value() -> None:
    assert constant_value(X) is None
    assert constant_value(X < 3) is None


# ---- nothing is decided silently -------------------------------------------------------------------------------------


def test_the_truth_of_a_symbolic_term_cannot_be_asked_for() -> None:
    """Plain z3py says False here, and an engine written on it takes the wrong branch without a word."""
    for term in (X, P, X < Y, X == Y, X != Y, P == Q, both(P, Q), as_bool(True), as_int(1)):
        with pytest.raises(TypeError, match="use select, both, either or negate"):
            bool(term)


def test_no_branch_on_a_symbolic_term() -> None:
    with pytest.raises(TypeError, match="truth of a symbolic term"):
        _ = 1 if X < Y else 2
    with pytest.raises(TypeError, match="truth of a symbolic term"):
        _ = X < Y and P
    with pytest.raises(TypeError, match="truth of a symbolic term"):
        _ = P or Q
    with pytest.raises(TypeError, match="truth of a symbolic term"):
        _ = not P
    with pytest.raises(TypeError, match="truth of a symbolic term"):
        _ = 0 < X < Y
    with pytest.raises(TypeError, match="truth of a symbolic term"):
        max(X, Y)
    with pytest.raises(TypeError, match="truth of a symbolic term"):
        _ = X in [Y]


def test_equality_builds_a_term() -> None:
    for equation in (X == Y, X == 3, P == Q, P == True, X != Y):  # noqa: E712
        assert isinstance(equation, BoolTerm)
    assert show(X == 3) == "(x == 3)"
    assert show(X != 3) == "not (x == 3)"


# ---- negation --------------------------------------------------------------------------------------------------------


def test_a_negated_comparison_is_the_opposite_comparison() -> None:
    assert negate(X < Y) is (Y <= X)
    assert negate(X <= Y) is (Y < X)
    assert negate(X >= Y) is (X < Y)
    assert negate(X > Y) is (X <= Y)
    assert negate(X != Y) is (X == Y)


def test_a_lower_bound_is_written_in_one_way() -> None:
    assert (X > 3) is (X >= 4)
    assert negate(X <= 3) is (X >= 4)


@pytest.mark.parametrize("term", [P, X < Y, X <= Y, 3 <= X, X < 4, X == Y, both(P, Q), either(P, X < Y)], ids=show)
def test_negating_twice_is_nothing(term: BoolTerm) -> None:
    assert negate(term) is not term
    assert negate(negate(term)) is term


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [0, -1, -16])
def test_a_constant_divisor_is_at_least_one(divisor: int) -> None:
    with pytest.raises(ValueError, match=f"divisor of // must be at least 1, not {divisor}"):
        _ = X // divisor
    with pytest.raises(ValueError, match="divisor"):
        _ = 5 // as_int(divisor)
    with pytest.raises(ValueError, match="divisor"):
        substitute(X // Y, {"y": as_int(divisor)})


# Untyped, as in a caller that mypy does not see.
ANY_INT: Any = X
ANY_BOOL: Any = P
ONE: Any = 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: both(ANY_BOOL, ONE),
        lambda: either(ANY_INT, ANY_BOOL),
        lambda: negate(ANY_INT),
        lambda: implies(ONE, ANY_BOOL),
        lambda: select(ANY_INT, 1, 2),
        lambda: ANY_BOOL == 1,
        lambda: ANY_BOOL == ANY_INT,
    ],
)
def test_an_integer_is_not_a_truth_value(build: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"expected a truth value|cannot compare a truth value"):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: ANY_INT + True,
        lambda: ANY_INT < ANY_BOOL,
        lambda: ANY_INT == ANY_BOOL,
        lambda: ANY_INT == None,  # noqa: E711
        lambda: ANY_INT * 1.0,
        lambda: as_int(True),
        lambda: maximum(ANY_BOOL, 1),
        lambda: select(ANY_BOOL, ANY_INT, Q),
        lambda: select(ANY_BOOL, 1, True),
        lambda: predicate("needed", ANY_BOOL),
        lambda: function("A", False),
    ],
)
def test_a_truth_value_is_not_an_integer(build: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="expected an integer"):
        build()


# ---- walking ---------------------------------------------------------------------------------------------------------


def test_subterms_come_once_and_arguments_first() -> None:
    shared = X + Y
    root = both(shared < Z, shared * 2 <= X, predicate("needed", shared))
    order = [term.index for term in subterms(root, shared)]
    assert len(order) == len(set(order))
    assert order[-1] == root.index
    position = {index: place for place, index in enumerate(order)}
    for term in subterms(root):
        assert all(position[arg.index] < position[term.index] for arg in term.args if isinstance(arg, IntTerm | BoolTerm))
    assert [show(term) for term in subterms(shared < Z)] == ["x", "y", "(x + y)", "z", "((x + y) < z)"]


def test_a_deep_term_is_walked_without_recursion() -> None:
    term: IntTerm = X
    for _ in range(5000):
        term = term + Y
    assert sum(1 for _ in subterms(term)) == 5002
    assert constant_value(substitute(term, {"x": as_int(1), "y": as_int(2)})) == 10_001


def test_substitution_puts_terms_for_variables_and_folds() -> None:
    term = both(X + Y < Z, implies(P, predicate("needed", X)), maximum(X, Y) // 2 == function("A", Y))
    assert substitute(term, {}) is term
    assert substitute(term, {"x": Z, "p": Q}) is both(Z + Y < Z, implies(Q, predicate("needed", Z)), maximum(Z, Y) // 2 == function("A", Y))
    assert constant_value(substitute(select(P, X, Y) * 3, {"p": as_bool(True), "x": as_int(5)})) == 15
    assert constant_value(substitute(X + Y < Z, {"x": as_int(1), "y": as_int(1), "z": as_int(3)})) is True


def test_substitution_is_simultaneous() -> None:
    assert substitute(X - Y, {"x": Y, "y": X}) is Y - X


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (as_int(-3), "-3"),
        (as_bool(True), "True"),
        (X + 2 * Y, "(x + (2 * y))"),
        (X // 4, "(x // 4)"),
        (2 < X, "(3 <= x)"),
        (X > Y, "(y < x)"),
        (both(P, negate(Q)), "(p and not q)"),
        (either(P, X == Y), "(p or (x == y))"),
        (select(P, X, 0), "(x if p else 0)"),
        (predicate("needed", X - 1), "needed((x - 1))"),
    ],
)
def test_terms_read_as_one_would_write_them(term: IntTerm | BoolTerm, text: str) -> None:
    assert show(term) == repr(term) == text
