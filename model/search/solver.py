"""The one file that touches solver objects: z3, and cvc5 as the second opinion.

A query is a set of named formulas; the question is whether all of them can hold at once. The answer is data: a status, the values of
the variables if they can, the names of those that cannot hold together if they cannot, and the seconds it took.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from settled.model.algebra import BoolTerm, IntTerm, Term, subterms
from settled.model.smtlib import script

TIMEOUT_SECONDS = 30.0


class Status(StrEnum):
    """What a solver says. UNKNOWN, time-outs included, is never taken for an answer."""

    SAT = "sat"
    UNSAT = "unsat"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """`values`: variable → value, for SAT. `core`: names of formulas that cannot hold together, for UNSAT (z3 only)."""

    status: Status
    seconds: float
    values: Mapping[str, int | bool] = field(default_factory=dict)
    core: tuple[str, ...] = ()
    reason: str = ""


class SolverMissing(RuntimeError):
    """A solver that was asked for is not installed; the message says how to install it."""


class Solver(Protocol):
    """Decides queries one at a time."""

    name: str

    def check(self, formulas: Mapping[str, BoolTerm]) -> Answer:
        """Whether all the formulas can hold at once."""
        ...


class Z3:
    """z3, one incremental solver, rendered terms shared between queries."""

    name = "z3"

    def __init__(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        import z3

        self._z3 = z3
        self._solver = z3.SimpleSolver()
        self._solver.set("timeout", int(timeout_seconds * 1000))
        self._rendered: dict[int, Any] = {}

    @property
    def version(self) -> str:
        return str(self._z3.get_version_string())

    def check(self, formulas: Mapping[str, BoolTerm]) -> Answer:
        began = time.perf_counter()
        self._solver.push()
        try:
            literals = {self._z3.Bool(f"h: {name}"): name for name in formulas}
            for literal, formula in zip(literals, formulas.values(), strict=True):
                self._solver.add(self._z3.Implies(literal, self.render(formula)))
            result = self._solver.check(*literals)
            seconds = time.perf_counter() - began
            if result == self._z3.sat:
                return Answer(Status.SAT, seconds, values=self._values(formulas.values()))
            if result == self._z3.unsat:
                names = {literal.get_id(): name for literal, name in literals.items()}
                core = {names[literal.get_id()] for literal in self._solver.unsat_core()}
                return Answer(Status.UNSAT, seconds, core=tuple(name for name in formulas if name in core))
            return Answer(Status.UNKNOWN, seconds, reason=self._solver.reason_unknown())
        finally:
            self._solver.pop()

    def render(self, root: Term) -> Any:
        """The z3 expression of a term."""
        for term in subterms(root):
            if term.index not in self._rendered:
                self._rendered[term.index] = self._expression(term, [self._rendered.get(_index(arg)) for arg in term.args])
        return self._rendered[root.index]

    def _expression(self, term: Term, args: list[Any]) -> Any:
        z3 = self._z3
        is_int = isinstance(term, IntTerm)
        match term.op:
            case "constant":
                return z3.IntVal(term.args[0]) if is_int else z3.BoolVal(term.args[0])
            case "variable":
                return z3.Int(term.args[0]) if is_int else z3.Bool(term.args[0])
            case "apply":
                sort = z3.IntSort() if is_int else z3.BoolSort()
                return z3.Function(term.args[0], z3.IntSort(), sort)(args[1])
            case "and":
                return z3.And(*args)
            case "or":
                return z3.Or(*args)
            case "not":
                return z3.Not(args[0])
            case "select":
                return z3.If(*args)
        x, y = args
        match term.op:
            case "+":
                return x + y
            case "-":
                return x - y
            case "*":
                return x * y
            case "//":
                return x / y  # z3's integer division floors, as divisors are at least 1
            case "<":
                return x < y
            case "<=":
                return x <= y
            case "==":
                return x == y
        raise NotImplementedError(term.op)

    def _values(self, formulas: Any) -> dict[str, int | bool]:
        model = self._solver.model()
        values: dict[str, int | bool] = {}
        for term in subterms(*formulas):
            if term.op == "variable":
                value = model.eval(self._rendered[term.index], model_completion=True)
                values[term.args[0]] = value.as_long() if isinstance(term, IntTerm) else self._z3.is_true(value)
        return values

    def minimize(self, formulas: Mapping[str, BoolTerm], objectives: Sequence[IntTerm]) -> Answer:
        """A model of the formulas in which the objectives are least, the first one first. Deterministic."""
        began = time.perf_counter()
        optimizer = self._z3.Optimize()
        optimizer.set(priority="lex", timeout=int(TIMEOUT_SECONDS * 1000))
        for formula in formulas.values():
            optimizer.add(self.render(formula))
        for objective in objectives:
            optimizer.minimize(self.render(objective))
        result = optimizer.check()
        seconds = time.perf_counter() - began
        if result != self._z3.sat:
            return Answer(Status.UNSAT if result == self._z3.unsat else Status.UNKNOWN, seconds)
        self._solver, kept = optimizer, self._solver
        try:
            return Answer(Status.SAT, seconds, values=self._values(formulas.values()))
        finally:
            self._solver = kept


class Cvc5:
    """cvc5, which reads the SMT-LIB text that `settled prove --export` writes."""

    name = "cvc5"

    def __init__(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        try:
            import cvc5
        except ImportError as error:
            raise SolverMissing("cvc5 is not installed: pip install 'settled[cvc5]'") from error
        self._cvc5 = cvc5
        self._timeout_ms = str(int(timeout_seconds * 1000))

    @property
    def version(self) -> str:
        return str(self._cvc5.__version__)

    def check(self, formulas: Mapping[str, BoolTerm]) -> Answer:
        began = time.perf_counter()
        solver = self._cvc5.Solver()
        solver.setOption("tlimit-per", self._timeout_ms)
        parser = self._cvc5.InputParser(solver)
        parser.setStringInput(self._cvc5.InputLanguage.SMT_LIB_2_6, script(formulas), "query")
        symbols = parser.getSymbolManager()
        output = ""
        while not (command := parser.nextCommand()).isNull():
            output += str(command.invoke(solver, symbols))
        seconds = time.perf_counter() - began
        word = output.strip()
        if word in (Status.SAT, Status.UNSAT):
            return Answer(Status(word), seconds)
        return Answer(Status.UNKNOWN, seconds, reason=word)


def _index(arg: Any) -> int:
    return arg.index if isinstance(arg, Term) else -1


def solver_named(name: str) -> Z3 | Cvc5:
    """The solver of that name. Raises SolverMissing if it is not installed."""
    return Z3() if name == "z3" else Cvc5()
