"""Terms: the one language in which kinds, counters and transitions are written.

A definition is a pure function over terms. Calling it traces it into a hash-consed graph: equal terms are the same object, so a
graph is built once and shared. `interpret.py` evaluates the graph on Python integers, `search/solver.py` renders it to z3.

Two sorts, integers and truth values; Python ints and bools stand for constants. There is no branching: asking a symbolic
term for its truth raises TypeError (plain z3py answers False), use `select`, `both`, `either`, `negate`, `implies` instead.
`//` floors, `%` is what it leaves; their divisor must be at least 1, which is checked for a constant and is an assumption of the
theorem for a symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar, cast, overload

# Solvers name an assertion so, to tell which ones a proof used; no variable may be called like one.
HYPOTHESIS = "h: "

# A node is identified by its operation and the identities of its arguments.
_Key = tuple[Any, ...]
_nodes: dict[_Key, Term] = {}


class Term:
    """A node of the graph. `op` is the operation, `args` are terms, or the payload of a leaf."""

    __slots__ = ("args", "index", "op")
    op: str
    args: tuple[Any, ...]
    index: int

    def __hash__(self) -> int:
        return self.index

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the truth of a symbolic term was asked for: {self!r}; use select, both, either or negate")

    def __repr__(self) -> str:
        return show(self)


class IntTerm(Term):
    """An integer."""

    __slots__ = ()

    def __add__(self, other: Int) -> IntTerm:
        return _arithmetic("+", self, other)

    def __radd__(self, other: int) -> IntTerm:
        return _arithmetic("+", other, self)

    def __sub__(self, other: Int) -> IntTerm:
        return _arithmetic("-", self, other)

    def __rsub__(self, other: int) -> IntTerm:
        return _arithmetic("-", other, self)

    def __mul__(self, other: Int) -> IntTerm:
        return _arithmetic("*", self, other)

    def __rmul__(self, other: int) -> IntTerm:
        return _arithmetic("*", other, self)

    def __floordiv__(self, other: Int) -> IntTerm:
        return _arithmetic("//", self, other)

    def __rfloordiv__(self, other: int) -> IntTerm:
        return _arithmetic("//", other, self)

    def __mod__(self, other: Int) -> IntTerm:
        return self - self // other * other

    def __lt__(self, other: Int) -> BoolTerm:
        return _comparison("<", self, other)

    def __le__(self, other: Int) -> BoolTerm:
        return _comparison("<=", self, other)

    def __gt__(self, other: Int) -> BoolTerm:
        return _comparison("<", other, self)

    def __ge__(self, other: Int) -> BoolTerm:
        return _comparison("<=", other, self)

    def __eq__(self, other: object) -> BoolTerm:  # type: ignore[override]
        return _comparison("==", self, other)

    def __ne__(self, other: object) -> BoolTerm:  # type: ignore[override]
        return negate(_comparison("==", self, other))

    __hash__ = Term.__hash__


class BoolTerm(Term):
    """A truth value."""

    __slots__ = ()

    def __eq__(self, other: object) -> BoolTerm:  # type: ignore[override]
        if not isinstance(other, BoolTerm | bool):
            raise TypeError(f"cannot compare a truth value with {other!r}")
        return either(both(self, other), both(negate(self), negate(other)))

    def __ne__(self, other: object) -> BoolTerm:  # type: ignore[override]
        return negate(self == other)

    __hash__ = Term.__hash__


Int = IntTerm | int
Bool = BoolTerm | bool
AnyTerm = TypeVar("AnyTerm", IntTerm, BoolTerm)


def _node(cls: type[AnyTerm], op: str, *args: Any) -> AnyTerm:
    key = (cls, op, *(arg.index if isinstance(arg, Term) else (type(arg), arg) for arg in args))
    found = _nodes.get(key)
    if found is None:
        found = cls()
        found.op, found.args, found.index = op, args, len(_nodes)
        _nodes[key] = found
    return found  # type: ignore[return-value]


# ---- leaves ----------------------------------------------------------------------------------------------------------


def int_variable(name: str) -> IntTerm:
    """A symbolic integer. Raises ValueError for a name that solvers could not tell from their own."""
    return _node(IntTerm, "variable", _checked(name))


def bool_variable(name: str) -> BoolTerm:
    """A symbolic truth value. Raises ValueError as `int_variable`."""
    return _node(BoolTerm, "variable", _checked(name))


def _checked(name: str) -> str:
    if not name or name.startswith(("$", HYPOTHESIS)) or "|" in name or "\\" in name:
        raise ValueError(f"a name must not be empty, start with $ or {HYPOTHESIS!r}, nor contain | or \\: {name!r}")
    return name


def as_int(value: Int) -> IntTerm:
    """The term of an integer. Raises TypeError for anything else, a bool included."""
    if isinstance(value, IntTerm):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return _node(IntTerm, "constant", int(value))  # an IntEnum member is its number
    raise TypeError(f"expected an integer, found {value!r}")


def as_bool(value: Bool) -> BoolTerm:
    """The term of a truth value. Raises TypeError for anything else."""
    if isinstance(value, BoolTerm):
        return value
    if isinstance(value, bool):
        return _node(BoolTerm, "constant", value)
    raise TypeError(f"expected a truth value, found {value!r}")


def predicate(name: str, argument: Int) -> BoolTerm:
    """An uninterpreted predicate of one integer: nothing is known of it but what a theorem assumes."""
    return _node(BoolTerm, "apply", name, as_int(argument))


def function(name: str, argument: Int) -> IntTerm:
    """An uninterpreted function from integers to integers."""
    return _node(IntTerm, "apply", name, as_int(argument))


def constant_value(term: Term) -> int | bool | None:
    """The value of a constant; None for anything else."""
    return term.args[0] if term.op == "constant" else None


# ---- integers --------------------------------------------------------------------------------------------------------

_FOLD: dict[str, Callable[[int, int], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    "==": lambda x, y: x == y,
}


def _arithmetic(op: str, left: Int, right: Int) -> IntTerm:
    x, y = as_int(left), as_int(right)
    a, b = constant_value(x), constant_value(y)
    if op == "//" and b is not None and b < 1:
        raise ValueError(f"the divisor of // must be at least 1, not {b}")
    if a is not None and b is not None:
        return as_int(_FOLD[op](a, b))
    if (op in "+-" and b == 0) or (op in ("*", "//") and b == 1):
        return x
    if (op == "+" and a == 0) or (op == "*" and a == 1):
        return y
    if op == "*" and (a == 0 or b == 0):
        return as_int(0)
    return _node(IntTerm, op, x, y)


def _comparison(op: str, left: object, right: object) -> BoolTerm:
    x, y = as_int(left), as_int(right)  # type: ignore[arg-type]
    a, b = constant_value(x), constant_value(y)
    if a is not None and b is not None:
        return as_bool(_FOLD[op](a, b))
    if x is y:
        return as_bool(op != "<")
    if op == "<" and a is not None:
        return _node(BoolTerm, "<=", as_int(a + 1), y)  # one way to write a lower bound
    return _node(BoolTerm, op, x, y)


def maximum(first: Int, second: Int) -> IntTerm:
    """The greater of two integers."""
    return select(as_int(first) >= second, first, second)


def minimum(first: Int, second: Int) -> IntTerm:
    """The smaller of two integers."""
    return select(as_int(first) <= second, first, second)


# ---- truth values ----------------------------------------------------------------------------------------------------


def both(*terms: Bool) -> BoolTerm:
    """All of them; true for none."""
    return _junction("and", terms, absorbing=False)


def either(*terms: Bool) -> BoolTerm:
    """At least one of them; false for none."""
    return _junction("or", terms, absorbing=True)


def _junction(op: str, terms: tuple[Bool, ...], *, absorbing: bool) -> BoolTerm:
    kept: dict[int, BoolTerm] = {}
    for term in map(as_bool, terms):
        value = constant_value(term)
        if value is None:
            kept[term.index] = term
        elif value is absorbing:
            return as_bool(absorbing)
    if len(kept) <= 1:
        return next(iter(kept.values()), as_bool(not absorbing))
    return _node(BoolTerm, op, *kept.values())


def negate(term: Bool) -> BoolTerm:
    """Not."""
    term = as_bool(term)
    value = constant_value(term)
    if value is not None:
        return as_bool(not value)
    match term.op:
        case "not":
            return cast("BoolTerm", term.args[0])
        case "<":
            return term.args[1] <= term.args[0]  # type: ignore[no-any-return]
        case "<=":
            return term.args[1] < term.args[0]  # type: ignore[no-any-return]
    return _node(BoolTerm, "not", term)


def implies(condition: Bool, conclusion: Bool) -> BoolTerm:
    """The conclusion, if the condition holds."""
    return either(negate(condition), conclusion)


@overload
def select(condition: Bool, then: Int, otherwise: Int) -> IntTerm: ...
@overload
def select(condition: Bool, then: BoolTerm, otherwise: Bool) -> BoolTerm: ...
@overload
def select(condition: Bool, then: Bool, otherwise: BoolTerm) -> BoolTerm: ...
def select(condition: Bool, then: Any, otherwise: Any) -> Any:
    """`then` if the condition holds, else `otherwise`; both are integers or both are truth values."""
    condition = as_bool(condition)
    if isinstance(then, BoolTerm | bool) and isinstance(otherwise, BoolTerm | bool):
        return either(both(condition, then), both(negate(condition), otherwise))
    x, y = as_int(then), as_int(otherwise)
    value = constant_value(condition)
    if value is not None:
        return x if value else y
    return x if x is y else _node(IntTerm, "select", condition, x, y)


# ---- walking the graph -----------------------------------------------------------------------------------------------


def subterms(*roots: Term, known: Container[int] = ()) -> Iterator[Term]:
    """Every term below the roots once, arguments before what is made of them; what is `known`, by index, is left out with all below it."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        term, expanded = stack.pop()
        if term.index in seen or term.index in known:
            continue
        if expanded:
            seen.add(term.index)
            yield term
            continue
        stack.append((term, True))
        stack.extend((arg, False) for arg in reversed(term.args) if isinstance(arg, Term) and arg.index not in seen)


def substitute(root: AnyTerm, values: Mapping[str, Term]) -> AnyTerm:
    """The term with variables replaced by terms, by name; constants fold on the way."""
    new: dict[int, Term] = {}
    for term in subterms(root):
        new[term.index] = _same_sort(term, values.get(term.args[0], term)) if term.op == "variable" else with_arguments(term, new)
    return cast("AnyTerm", new[root.index])


def with_arguments(term: Term, new: Mapping[int, Term]) -> Term:
    """The term made again of what its arguments were replaced by, by their index; a leaf stays."""
    if term.op in ("variable", "constant"):
        return term
    args: list[Any] = [new[arg.index] if isinstance(arg, Term) else arg for arg in term.args]
    if term.op == "apply":
        return (function if isinstance(term, IntTerm) else predicate)(*args)
    return _REBUILD[term.op](*args)


def _same_sort(term: Term, replacement: Term) -> Term:
    if type(term) is not type(replacement):
        raise TypeError(f"{term!r} cannot be replaced by {replacement!r}: one is an integer, the other a truth value")
    return replacement


_REBUILD: dict[str, Callable[..., Term]] = {
    **{op: partial(_arithmetic, op) for op in ("+", "-", "*", "//")},
    **{op: partial(_comparison, op) for op in ("<", "<=", "==")},
    "and": both,
    "or": either,
    "not": negate,
    "select": select,
}


def show(term: Term) -> str:
    """The term as a reader would write it."""
    args = [show(arg) if isinstance(arg, Term) else str(arg) for arg in term.args]
    match term.op:
        case "constant" | "variable":
            return args[0]
        case "apply":
            return f"{args[0]}({args[1]})"
        case "not":
            return f"not {args[0]}"
        case "select":
            return f"({args[1]} if {args[0]} else {args[2]})"
        case op:
            return "(" + f" {op} ".join(args) + ")"
