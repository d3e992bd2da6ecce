"""Masks that users write: loaded from a file, turned into a theorem, and refuted by the smallest case if they do not shrink."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from settled.model.algebra import (
    Bool,
    BoolTerm,
    Int,
    IntTerm,
    Term,
    as_bool,
    as_int,
    both,
    constant_value,
    implies,
    int_variable,
    negate,
    substitute,
    subterms,
)
from settled.model.disciplines import RIGHT, Discipline, Rounding
from settled.model.interpret import compile_terms
from settled.model.kinds import Kind, in_block, needed_sets_shrink
from settled.model.search.induction import Obligation
from settled.model.search.solver import Z3, Status
from settled.proofs.masks import Case, claim, reading_lemmas
from settled.proofs.residency import ENVIRONMENT, residency, rollback
from settled.proofs.theorem import Part, Theorem

KEY = "mask"
_QUERY, _TOKEN = int_variable("query"), int_variable("token")
_FIRST, _LAST, _BASIS = int_variable("first"), int_variable("last"), int_variable("p")


Rule = Callable[[IntTerm, IntTerm, IntTerm], Bool]


class MaskError(ValueError):
    """A mask that cannot be used; the message says in one line where it comes from and what is wrong."""

    hint = "--mask FILE or FILE:NAME, where FILE has def reads(query, token) and returns a formula: settled prove --help"


@dataclass(frozen=True)
class UserMask(Kind):
    """A mask from outside, and its rule if it has one; without one a block goes when the mask lets each of its tokens go.

    `defines_reads(query, token)`, and `defines_frees(first, last, basis)`, which says whether a prune at `basis` settled tokens frees the
    block of the tokens `first` to `last`.
    """

    name: str
    defines_reads: Callable[[IntTerm, IntTerm], Bool]
    defines_frees: Rule | None = None

    def reads(self, query: Int, token: Int) -> BoolTerm:
        return both(as_int(token) >= 0, as_bool(self.defines_reads(as_int(query), as_int(token))))

    def skipped_tokens(self, basis: Int) -> IntTerm:
        raise NotImplementedError(f"{self.name} has no number of skipped tokens")

    def frees_block(self, first: Int, last: Int, basis: Int, rounding: Rounding) -> BoolTerm:
        """By the user's rule; without one, all that is known of a freed block is that the mask lets the tracked token go."""
        if rounding is not Rounding.FLOOR:
            raise NotImplementedError(f"{self.name} has no block boundary to round at")
        if self.defines_frees is None:
            return self.may_free(_TOKEN, basis)
        return as_bool(self.defines_frees(as_int(first), as_int(last), as_int(basis)))


def compiled_reads(mask: Kind) -> Callable[[int, int], bool]:
    """The mask as a Python function `reads(query, token)` of two positions, for an engine or a reference that serves it."""
    compiled = compile_terms([mask.reads(_QUERY, _TOKEN)], ["query", "token"])
    return lambda query, token: bool(compiled(query, token)[0])


def served(mask: UserMask, block_size: int) -> UserMask:
    """The mask as a monitor wants it, for blocks of `block_size` tokens: without a rule a block goes when each of its tokens may go."""
    if mask.defines_frees is not None:
        return mask
    return replace(mask, defines_frees=lambda first, _, basis: both(*(mask.may_free(first + i, basis) for i in range(block_size))))


# ---- loading ---------------------------------------------------------------------------------------------------------


def load_mask(where: str) -> UserMask:
    """The mask of `FILE` or `FILE:NAME`: a function `reads`, and a function `frees` or `skipped_tokens` if there is one.

    NAME is a class or an object with these functions, or a function that takes the place of `reads`; without NAME they are the file's own.
    Runs the file. Raises MaskError.
    """
    file, name = _split(where)
    module = _run(Path(file), file)
    holder: Any = module
    if name:
        if not hasattr(module, name):
            raise MaskError(f"{file}: there is no {name!r} in it")
        holder = getattr(module, name)
        if isinstance(holder, type):
            holder = _checked(where, holder)
    reads = holder if name and callable(holder) and not hasattr(holder, "reads") else getattr(holder, "reads", None)
    if not callable(reads):
        raise MaskError(f"{where}: expected a function reads(query, token), found none")
    frees = _rule(holder)
    return UserMask(
        name or Path(file).stem,
        _traced(where, "reads", reads, _QUERY, _TOKEN),
        None if frees is None else _traced(where, "the rule", frees, _FIRST, _LAST, _BASIS),
    )


def _split(where: str) -> tuple[str, str]:
    """FILE and NAME; a colon belongs to FILE if a file of that name is there."""
    file, colon, name = where.rpartition(":")
    return (file, name) if colon and not Path(where).exists() else (where, "")


def _run(path: Path, shown: str) -> Any:
    if not path.is_file():
        raise MaskError(f"{shown}: {'not a file' if path.exists() else 'no such file'}")
    spec = importlib.util.spec_from_file_location(f"settled_mask_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MaskError(f"{shown}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader
    _checked(shown, lambda: loader.exec_module(module))
    return module


def _rule(holder: Any) -> Rule | None:
    frees, skipped = getattr(holder, "frees", None), getattr(holder, "skipped_tokens", None)
    if callable(frees):
        rule: Rule = frees
        return rule
    if callable(skipped):
        return lambda _, last, basis: last < as_int(skipped(basis))
    return None


def _traced(where: str, what: str, define: Callable[..., Bool], *of: IntTerm) -> Callable[..., BoolTerm]:
    """The function as one formula, made by one call: what is proved, compiled and served is the same, whatever another call would say.

    The formula may speak of the function's arguments alone, and divide by constants alone: anything else would be an assumption of the
    theorem that nobody wrote down.
    """
    names = [variable.args[0] for variable in of]
    formula: BoolTerm = _checked(where, lambda: as_bool(define(*of)))
    for term in subterms(formula):
        if term.op == "apply" or (term.op == "variable" and term.args[0] not in names):
            raise MaskError(f"{where}: {what} may speak of {', '.join(names)} only, not of {term.args[0]!r}")
        if term.op == "//" and constant_value(term.args[1]) is None:
            raise MaskError(f"{where}: {what} may divide by constants only, not by {term.args[1]!r}")

    def at(*values: Int) -> BoolTerm:
        terms: dict[str, Term] = {name: as_int(value) for name, value in zip(names, values, strict=True)}
        return substitute(formula, terms)

    return at


def _checked(where: str, call: Callable[[], Any]) -> Any:
    """What the user's code returns; whatever it raises, an exit included, becomes one line. What it prints goes to standard error."""
    try:
        with redirect_stdout(sys.stderr):
            return call()
    except (Exception, SystemExit) as error:
        raise MaskError(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error


# ---- the theorem -----------------------------------------------------------------------------------------------------


def theorem_of(mask: UserMask) -> Theorem:
    """What is proved of a user's mask: what theorems 3 to 5 assume of one, and these theorems with its own rule.

    Where needed-sets grow the theorems say nothing, so only what they assume is asked. A rule that keeps more than the mask needs is
    sound, and no subject of theorem 5: `notes_of` says what it keeps.
    """
    case = Case(mask)
    parts = [Part("mask", RIGHT, partial(_mask, case))]
    if smallest_growth(mask) is None:
        parts.append(Part("read_resident, write_owned (T3)", RIGHT, partial(residency, case)))
        parts.append(Part("rollback_resident (T4)", RIGHT, partial(rollback, case)))
    is_tight = mask.defines_frees is not None and _smallest_kept(mask) is None
    if is_tight:
        parts.append(Part("tight (T5)", RIGHT, partial(_tight, case)))
    rule = "the rule" if mask.defines_frees is not None else "any rule that the mask allows"
    return Theorem(
        key=KEY,
        name=mask.name,
        sentence=(
            f"The needed-sets of {mask.name} shrink, and with {rule} no unprocessed step uses a block that is gone (T3), and no rollback "
            "makes one needed again (T4)"
            + (", and a past token that the rule keeps in a block of its own is read by the next query (T5)." if is_tight else ".")
        ),
        assumptions=ENVIRONMENT,
        parts=parts,
        killers=(),
    )


def _mask(case: Case, discipline: Discipline) -> list[Obligation]:
    kind = case.kind
    assert isinstance(kind, UserMask)
    lemmas = reading_lemmas(kind, case.assumptions)
    if kind.defines_frees is None:
        return lemmas  # a block goes when the mask lets each of its tokens go: of such a rule there is nothing to prove
    block = {"p >= 0": _BASIS >= 0, "the block holds the token": both(_FIRST >= 0, in_block(_TOKEN, _FIRST, _LAST))}
    frees = kind.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding)
    return [*lemmas, claim("the rule frees no more than the mask", block, implies(frees, kind.may_free(_TOKEN, _BASIS)))]


def _tight(case: Case, discipline: Discipline) -> list[Obligation]:
    """Blocks of one token: of a longer one that a rule keeps, which token is needed depends on the mask."""
    kept = {
        "a past token": both(_TOKEN >= 0, _TOKEN < _BASIS),
        "the rule keeps it": negate(case.kind.frees_block(_TOKEN, _TOKEN, _BASIS, discipline.rounding)),
    }
    return [claim("a past token that the rule keeps is read by the query at p", kept, case.kind.reads(_BASIS, _TOKEN))]


# ---- a mask that does not shrink -------------------------------------------------------------------------------------


class Growth(NamedTuple):
    """A key that an earlier query did not read any more, and a later one does. Positions, in tokens."""

    query: int
    later_query: int
    token: int

    def __str__(self) -> str:
        return f"query {self.query} does not read token {self.token}, but query {self.later_query} does"


def notes_of(mask: UserMask) -> list[str]:
    """What there is to say of a mask beside its proof: its smallest growth, and the smallest token that its rule keeps for nothing."""
    growth = smallest_growth(mask)
    if growth is not None:
        return [f"needed-sets grow, smallest case: {growth}"]
    kept = _smallest_kept(mask)
    return [] if kept is None else [f"the rule keeps tokens that the mask lets go, smallest case: token {kept[1]} at p = {kept[0]}"]


def _smallest_kept(mask: UserMask) -> tuple[int, int] | None:
    """The least p, then the least token, for which a block of that token alone could go and does not."""
    kept = both(mask.may_free(_TOKEN, _BASIS), negate(mask.frees_block(_TOKEN, _TOKEN, _BASIS, Rounding.FLOOR)))
    answer = Z3().minimize({"positions": both(_TOKEN >= 0, _BASIS >= 0), "kept": kept}, [_BASIS, _TOKEN])
    return (int(answer.values["p"]), int(answer.values["token"])) if answer.status is Status.SAT else None


def smallest_growth(mask: Kind) -> Growth | None:
    """The case with the least later query, then the least query, then the least token; None if needed-sets shrink, or nobody knows."""
    later = int_variable("later query")
    positions = both(_TOKEN >= 0, _QUERY >= 0)
    answer = Z3().minimize(
        {"positions": positions, "grows": negate(needed_sets_shrink(mask, _QUERY, later, _TOKEN))}, [later, _QUERY, _TOKEN]
    )
    if answer.status is not Status.SAT:
        return None
    return Growth(*(int(answer.values[name]) for name in ("query", "later query", "token")))
