"""The graph on Python integers: evaluated term by term, or compiled once to a Python function.

Both branches of a `select` may be evaluated, as solvers see them, so a divisor must be at least 1 in either. What is used once is written
where it is used, without a name of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from settled.model.algebra import Term, subterms

INLINE_MAX = 200  # characters of an expression that is written where it is used: Python limits how deep parentheses nest
_PYTHON = {"+": "+", "-": "-", "*": "*", "//": "//", "<": "<", "<=": "<=", "==": "==", "and": " and ", "or": " or "}


def evaluate(term: Term, values: Mapping[str, Any]) -> Any:
    """The value of a term: `values` maps a variable to an int or a bool, an uninterpreted function to a callable.

    Raises KeyError for a name without a value.
    """
    return compile_terms([term], tuple(values))(*values.values())[0]


def compile_terms(terms: Sequence[Term], inputs: Sequence[str]) -> Callable[..., tuple[Any, ...]]:
    """A Python function from the named inputs to the values of the terms, every shared subterm computed once.

    Raises KeyError for a variable or function that is not among the inputs.
    """
    return _compiled(terms, inputs, lambda values: f"({', '.join(values)},)" if values else "()")


def compile_term(term: Term, inputs: Sequence[str]) -> Callable[..., Any]:
    """The same for one term: a function to its value alone."""
    return _compiled([term], inputs, lambda values: values[0])


def _compiled(terms: Sequence[Term], inputs: Sequence[str], result: Callable[[list[str]], str]) -> Callable[..., Any]:
    names = {name: f"i{number}" for number, name in enumerate(inputs)}
    code: dict[int, str] = {}
    body = []
    in_order = list(subterms(*terms))
    uses = Counter(arg.index for term in in_order for arg in term.args if isinstance(arg, Term))
    uses.update(term.index for term in terms)
    for term in in_order:
        expression = _expression(term, names, code)
        if term.op in ("constant", "variable"):
            code[term.index] = expression
        elif uses[term.index] == 1 and len(expression) < INLINE_MAX:
            code[term.index] = f"({expression})"
        else:
            code[term.index] = f"t{term.index}"
            body.append(f"  t{term.index} = {expression}")
    source = "\n".join([f"def compiled({', '.join(names.values())}):", *body, f"  return {result([code[term.index] for term in terms])}"])
    namespace: dict[str, Any] = {}
    exec(source, namespace)  # the source is made of operators and numbered names only
    compiled: Callable[..., Any] = namespace["compiled"]
    return compiled


def _expression(term: Term, names: Mapping[str, str], code: Mapping[int, str]) -> str:
    match term.op:
        case "constant":
            return f"({term.args[0]!r})"
        case "variable":
            return names[term.args[0]]
        case "apply":
            return f"{names[term.args[0]]}({code[term.args[1].index]})"
        case "not":
            return f"not {code[term.args[0].index]}"
        case "select":
            condition, then, otherwise = (code[arg.index] for arg in term.args)
            return f"{then} if {condition} else {otherwise}"
        case op:
            return f" {_PYTHON[op]} ".join(code[arg.index] for arg in term.args)
