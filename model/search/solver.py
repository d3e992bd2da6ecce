"""The one file that touches solver objects: z3, and cvc5 as the second opinion.

A query is a set of named formulas; the question is whether all of them can hold at once. The answer is data: a status, the values of
the variables if they can, the names of those that cannot hold together if they cannot, and the seconds it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, reduce
from typing import Any, Protocol

from settled.model.algebra import (
    HYPOTHESIS,
    BoolTerm,
    IntTerm,
    Term,
    as_bool,
    as_int,
    both,
    constant_value,
    either,
    implies,
    negate,
    select,
    subterms,
)
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


class _Values(Mapping[str, int | bool]):
    """The values of a model, read when they are first asked for: of most queries only the status is."""

    def __init__(self, read: Callable[[], dict[str, int | bool]]) -> None:
        self._read = cache(read)

    def __getitem__(self, name: str) -> int | bool:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


class SolverMissingError(RuntimeError):
    """A solver that was asked for is not installed; the hint says how to install it."""

    hint = "pip install 'settled[cvc5]'"


class SolverMemoryError(MemoryError):
    """A solver had no memory left; the message says which. Nothing is known of the query, and the solver cannot be used any more."""


@contextmanager
def _telling_of_memory(solver: str) -> Iterator[None]:
    """Solvers tell it by exceptions of their own. Raises SolverMemoryError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error) or "bad_alloc" in str(error):
            raise SolverMemoryError(f"{solver} ran out of memory") from error
        raise


class Solver(Protocol):
    """Decides queries one at a time."""

    name: str

    def check(self, formulas: Mapping[str, BoolTerm]) -> Answer:
        """Whether all the formulas can hold at once."""
        ...


# Operator → z3's function that makes an expression of it, and whether that takes its arguments as a list. z3's integer division floors,
# as divisors are at least 1.
_MAKERS = {
    "and": ("Z3_mk_and", True),
    "or": ("Z3_mk_or", True),
    "not": ("Z3_mk_not", False),
    "select": ("Z3_mk_ite", False),
    "+": ("Z3_mk_add", True),
    "-": ("Z3_mk_sub", True),
    "*": ("Z3_mk_mul", True),
    "//": ("Z3_mk_div", False),
    "<": ("Z3_mk_lt", False),
    "<=": ("Z3_mk_le", False),
    "==": ("Z3_mk_eq", False),
}


class Z3:
    """z3, one incremental solver, rendered terms shared between queries."""

    name = "z3"

    def __init__(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        import z3

        self._z3 = z3
        self._solver = z3.SimpleSolver()
        # ctrl_c off: z3 would take an interrupt for a time-out and let the run go on; Python raises it once the query is over.
        self._solver.set("timeout", int(timeout_seconds * 1000), "ctrl_c", False)
        self._rendered: dict[int, Any] = {}
        self._assertions: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._sorts: dict[str, type[Term]] = {}

    @property
    def version(self) -> str:
        return str(self._z3.get_version_string())

    @_telling_of_memory("z3")
    def check(self, formulas: Mapping[str, BoolTerm]) -> Answer:
        """Raises SolverMemoryError."""
        began = time.perf_counter()
        self._solver.push()
        try:
            asserted = [self._named(name, formula) for name, formula in formulas.items()]
            for _, implication in asserted:
                self._z3.Z3_solver_assert(self._solver.ctx.ref(), self._solver.solver, implication.ast)
            literals = {literal: name for (literal, _), name in zip(asserted, formulas, strict=True)}
            result = self._solver.check(*literals)
            seconds = time.perf_counter() - began
            if result == self._z3.sat:
                return Answer(Status.SAT, seconds, values=self._values(formulas.values()))
            if result == self._z3.unsat:
                names = {literal.get_id(): name for literal, name in literals.items()}
                core = {names[literal.get_id()] for literal in self._solver.unsat_core()}
                return Answer(Status.UNSAT, seconds, core=tuple(name for name in formulas if name in core))
            reason = self._solver.reason_unknown()
            if "memory" in reason:
                raise SolverMemoryError(f"z3 ran out of memory ({reason})")
            return Answer(Status.UNKNOWN, seconds, reason=reason)
        finally:
            self._solver.pop()

    def _named(self, name: str, formula: BoolTerm) -> tuple[Any, Any]:
        """The literal that stands for a named formula, and that it implies the formula; the same ones come in many queries."""
        key = (name, formula.index)
        if key not in self._assertions:
            literal = self._z3.Bool(HYPOTHESIS + name)
            self._assertions[key] = (literal, self._z3.Implies(literal, self.render(formula)))
        return self._assertions[key]

    def render(self, root: Term) -> Any:
        """The z3 expression of a term."""
        for term in subterms(root, known=self._rendered):
            self._rendered[term.index] = self._expression(term, [self._rendered.get(_index(arg)) for arg in term.args])
        return self._rendered[root.index]

    def _expression(self, term: Term, args: list[Any]) -> Any:
        z3 = self._z3
        is_int = isinstance(term, IntTerm)
        if term.op in ("variable", "apply") and self._sorts.setdefault(term.args[0], type(term)) is not type(term):
            raise ValueError(f"{term.args[0]!r} is an integer and a truth value in one query")
        match term.op:
            case "constant":
                return z3.IntVal(term.args[0]) if is_int else z3.BoolVal(term.args[0])
            case "variable":
                return z3.Int(term.args[0]) if is_int else z3.Bool(term.args[0])
            case "apply":
                sort = z3.IntSort() if is_int else z3.BoolSort()
                return z3.Function(term.args[0], z3.IntSort(), sort)(args[1])
        # z3's own makers, not its Python operators: every argument has its sort already, and looking for it is half of the time.
        context = z3.main_ctx()
        maker, of_list = _MAKERS[term.op]
        asts = [arg.ast for arg in args]
        given = (len(asts), (z3.Ast * len(asts))(*asts)) if of_list else asts
        wrap = z3.ArithRef if is_int else z3.BoolRef
        return wrap(getattr(z3, maker)(context.ref(), *given), context)

    def _values(self, formulas: Iterable[BoolTerm]) -> Mapping[str, int | bool]:
        model, roots = self._solver.model(), tuple(formulas)

        def read() -> dict[str, int | bool]:
            values: dict[str, int | bool] = {}
            for term in subterms(*roots):
                if term.op == "variable":
                    value = model.eval(self._rendered[term.index], model_completion=True)
                    values[term.args[0]] = value.as_long() if isinstance(term, IntTerm) else self._z3.is_true(value)
            return values

        return _Values(read)

    @_telling_of_memory("z3")
    def minimize(self, formulas: Mapping[str, BoolTerm], objectives: Sequence[IntTerm]) -> Answer:
        """A model of the formulas in which the objectives are least, the first one first. Deterministic. Raises SolverMemoryError."""
        began = time.perf_counter()
        optimizer = self._z3.Optimize()
        optimizer.set(priority="lex", timeout=int(TIMEOUT_SECONDS * 1000), ctrl_c=False)
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
        except ModuleNotFoundError as error:
            raise SolverMissingError("cvc5 is not installed") from error
        self._cvc5 = cvc5
        self._timeout_ms = str(int(timeout_seconds * 1000))

    @property
    def version(self) -> str:
        return str(self._cvc5.__version__)

    @_telling_of_memory("cvc5")
    def check(self, formulas: Mapping[str, BoolTerm]) -> Answer:
        """Raises SolverMemoryError."""
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
    """The solver of that name. Raises SolverMissingError if it is not installed."""
    return Z3() if name == "z3" else Cvc5()


# ---- Horn clauses ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HornRule:
    """From any reachable state in which `guard` holds, the state whose variables have the values `after` is reachable."""

    guard: BoolTerm
    after: Mapping[str, Term]


@dataclass(frozen=True)
class HornAnswer:
    """UNSAT: no bad state is reachable, and `conjuncts` are an invariant, found by the solver, that shows it."""

    status: Status
    seconds: float
    conjuncts: tuple[BoolTerm, ...] = ()
    reason: str = ""


@_telling_of_memory("z3")
def find_invariant(
    variables: Sequence[IntTerm | BoolTerm],
    constants: Sequence[IntTerm | BoolTerm],
    choices: Sequence[IntTerm | BoolTerm],
    *,
    assumption: BoolTerm,
    initial: Mapping[str, Term],
    rules: Sequence[HornRule],
    bad: BoolTerm,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> HornAnswer:
    """Asks Spacer, z3's engine for Horn clauses, for an invariant of a transition system that excludes the bad states.

    Raises SolverMemoryError.
    """
    import z3

    render = Z3().render
    fixedpoint = z3.Fixedpoint()
    fixedpoint.set(engine="spacer", timeout=int(timeout_seconds * 1000), ctrl_c=False)
    state = [*variables, *constants]
    symbols = [render(term) for term in state]
    reachable = z3.Function("reachable", *(symbol.sort() for symbol in symbols), z3.BoolSort())
    is_bad = z3.Function("bad", z3.BoolSort())
    fixedpoint.register_relation(reachable, is_bad)
    fixedpoint.declare_var(*symbols, *(render(choice) for choice in choices))

    def state_with(values: Mapping[str, Term]) -> Any:
        return reachable(*(render(values.get(term.args[0], term)) for term in state))

    here = state_with({})
    fixedpoint.rule(state_with(initial), [render(assumption)])
    for rule in rules:
        fixedpoint.rule(state_with(rule.after), [here, render(rule.guard)])
    fixedpoint.rule(is_bad(), [here, render(bad)])
    began = time.perf_counter()
    try:
        result = fixedpoint.query(is_bad())
    except z3.Z3Exception as error:
        if "out of memory" in str(error):
            raise
        return HornAnswer(Status.UNKNOWN, time.perf_counter() - began, reason=str(error))
    seconds = time.perf_counter() - began
    if result != z3.unsat:
        return HornAnswer(Status(str(result)), seconds)
    body = _definition(fixedpoint.get_answer(), "reachable")
    return HornAnswer(Status.UNSAT, seconds, tuple(_from_z3(part, state) for part in body))


def _definition(answer: Any, relation: str) -> list[Any]:
    """The conjuncts that Spacer's answer gives for a relation: it is a conjunction of `forall x: relation(x) == body`."""
    import z3

    parts = answer.children() if z3.is_and(answer) else [answer]
    for part in parts:
        body = part.body() if z3.is_quantifier(part) else part
        if z3.is_eq(body) and body.arg(0).decl().name() == relation:
            return body.arg(1).children() if z3.is_and(body.arg(1)) else [body.arg(1)]
    raise ValueError(f"the answer of Spacer does not define {relation}: {answer}")


def _from_z3(expression: Any, state: Sequence[IntTerm | BoolTerm]) -> Any:
    """The term of a z3 expression over bound variables, which number the state from its end."""
    import z3

    if z3.is_var(expression):
        return state[len(state) - 1 - z3.get_var_index(expression)]
    if z3.is_int_value(expression):
        return as_int(expression.as_long())
    if z3.is_true(expression) or z3.is_false(expression):
        return as_bool(z3.is_true(expression))
    args = [_from_z3(child, state) for child in expression.children()]
    build = _FROM_Z3.get(expression.decl().name())
    if build is None:
        raise ValueError(f"Spacer used an operation that terms do not have: {expression.decl()}")
    return build(*args)


def _sum(x: IntTerm, y: IntTerm) -> IntTerm:
    """x + y, where Spacer's x + -1 * y reads better as x - y."""
    return x - y.args[1] if y.op == "*" and constant_value(y.args[0]) == -1 else x + y


_FROM_Z3: dict[str, Callable[..., Term]] = {
    "and": both,
    "or": either,
    "not": negate,
    "=>": implies,
    "=": lambda x, y: x == y,
    "<=": lambda x, y: x <= y,
    "<": lambda x, y: x < y,
    ">=": lambda x, y: x >= y,
    ">": lambda x, y: x > y,
    "+": lambda *args: reduce(_sum, args),
    "-": lambda x, *rest: x - rest[0] if rest else 0 - x,
    "*": lambda x, y: x * y,
    "if": select,
}
