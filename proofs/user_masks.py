"""Masks that users write: loaded from a file, turned into a theorem, and refuted by the smallest case if they do not shrink."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from settled.model.algebra import Bool, BoolTerm, Int, IntTerm, as_bool, as_int, both, implies, int_variable, negate
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
    mask = UserMask(name or Path(file).stem, reads, _rule(holder))
    _checked(where, lambda: mask.reads(_QUERY, _TOKEN))
    _checked(where, lambda: mask.frees_block(_FIRST, _LAST, _BASIS, Rounding.FLOOR))
    return mask


def _split(where: str) -> tuple[str, str]:
    """FILE and NAME; a colon belongs to FILE if a file of that name is there."""
    file, colon, name = where.rpartition(":")
    return (file, name) if colon and not Path(where).exists() else (where, "")


def _run(path: Path, shown: str) -> Any:
    if not path.is_file():
        raise MaskError(f"{shown}: no such file")
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


def _checked(where: str, call: Callable[[], Any]) -> Any:
    """What the user's code returns; whatever it raises becomes one line."""
    try:
        return call()
    except Exception as error:
        raise MaskError(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error


# ---- the theorem -----------------------------------------------------------------------------------------------------


def theorem_of(mask: UserMask) -> Theorem:
    """What is proved of a user's mask: what theorems 3 to 5 assume of one, and these theorems with its own rule.

    Where needed-sets grow the theorems say nothing, so only what they assume is asked.
    """
    case = Case(mask)
    theirs = (
        Part("read_resident, write_owned (T3)", RIGHT, partial(residency, case)),
        Part("rollback_resident (T4)", RIGHT, partial(rollback, case)),
    )
    rule = "the rule" if mask.defines_frees is not None else "any rule that the mask allows"
    return Theorem(
        key=KEY,
        name=mask.name,
        sentence=(
            f"The needed-sets of {mask.name} shrink, and with {rule} no unprocessed step uses a block that is gone (T3), no rollback makes "
            f"one needed again (T4), and a token that is kept is read by some continuation (T5)."
        ),
        assumptions=ENVIRONMENT,
        parts=(
            Part("mask", RIGHT, partial(_mask, case)),
            *(theirs if smallest_growth(mask) is None else ()),
        ),
        killers=(),
    )


def _mask(case: Case, discipline: Discipline) -> list[Obligation]:
    kind = case.kind
    positions = {"token >= 0": _TOKEN >= 0, "p >= 0": _BASIS >= 0}
    block = {**positions, "the block holds the token": both(_FIRST >= 0, in_block(_TOKEN, _FIRST, _LAST))}
    frees = kind.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding)
    may_free = kind.may_free(_TOKEN, _BASIS)
    past = both(_TOKEN < _BASIS, negate(may_free))
    return [
        *reading_lemmas(kind, case.assumptions),
        claim("the rule frees no more than the mask", block, implies(frees, may_free)),
        claim("a past token that is kept is read by the query at p", {**positions, "kept": past}, kind.reads(_BASIS, _TOKEN)),
    ]


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
