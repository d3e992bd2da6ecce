"""The graph as SMT-LIB 2.6 text: what `settled prove --export` writes and what the second solver reads."""

from __future__ import annotations

from collections.abc import Mapping

from settled.model.algebra import HYPOTHESIS, BoolTerm, IntTerm, Term, subterms

# Integers with uninterpreted functions; N where a product or a quotient of two symbols occurs.
_LINEAR, _NONLINEAR = "QF_UFLIA", "QF_UFNIA"
_SMTLIB = {"//": "div", "==": "=", "and": "and", "or": "or", "not": "not", "select": "ite"}


def script(formulas: Mapping[str, BoolTerm], *, comment: str = "") -> str:
    """A complete script: declarations, one named assertion a formula, check-sat. Satisfiable iff all formulas can hold at once."""
    lines = [f"; {line}" for line in comment.splitlines()]
    terms = list(subterms(*formulas.values()))
    lines += [f"(set-logic {_logic(terms)})", *_declarations(terms)]
    text: dict[int, str] = {}
    for term in terms:
        text[term.index] = _expression(term, text)
        if term.op not in ("constant", "variable", "apply") and len(text[term.index]) > 60:  # share what is big
            lines.append(f"(define-fun |${term.index}| () {_sort(term)} {text[term.index]})")
            text[term.index] = f"|${term.index}|"
    lines += [f"(assert (! {text[formula.index]} :named |{HYPOTHESIS}{_checked(name)}|))" for name, formula in formulas.items()]
    return "\n".join([*lines, "(check-sat)", ""])


def _logic(terms: list[Term]) -> str:
    def symbolic(term: Term) -> bool:
        return term.op in ("*", "//") and all(arg.op != "constant" for arg in term.args[1 if term.op == "//" else 0 :])

    return _NONLINEAR if any(symbolic(term) for term in terms) else _LINEAR


def _declarations(terms: list[Term]) -> list[str]:
    lines: dict[str, None] = {}
    sorts: dict[str, str] = {}
    for term in terms:
        if term.op in ("variable", "apply") and sorts.setdefault(term.args[0], _sort(term)) != _sort(term):
            raise ValueError(f"{term.args[0]!r} is an integer and a truth value in one query")
        if term.op == "variable":
            lines[f"(declare-const |{term.args[0]}| {_sort(term)})"] = None
        elif term.op == "apply":
            lines[f"(declare-fun |{term.args[0]}| (Int) {_sort(term)})"] = None
    return list(lines)


def _checked(name: str) -> str:
    if "|" in name or "\\" in name:
        raise ValueError(f"the name of a formula must not contain | or \\: {name!r}")
    return name


def _sort(term: Term) -> str:
    return "Int" if isinstance(term, IntTerm) else "Bool"


def _expression(term: Term, text: Mapping[int, str]) -> str:
    match term.op:
        case "constant":
            value = term.args[0]
            if isinstance(value, bool):
                return "true" if value else "false"
            return str(value) if value >= 0 else f"(- {-value})"
        case "variable":
            return f"|{term.args[0]}|"
        case "apply":
            return f"(|{term.args[0]}| {text[term.args[1].index]})"
        case op:
            return f"({_SMTLIB.get(op, op)} {' '.join(text[arg.index] for arg in term.args)})"
