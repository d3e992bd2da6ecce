"""Bounded model checking: the shortest trace that violates a property under a discipline, or the proof that none is as short.

At each length, shortest first, the solver is asked for a violation at exactly that length, with any window, any block, any prompt. Every
length below the answer was unsatisfiable, so the trace is a shortest one. Only then is a block size fixed and the numbers made small.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from settled.model.algebra import BoolTerm, Int, IntTerm, as_int, both, int_variable
from settled.model.explicit import Choice, Setting, after, guard, initial, violated
from settled.model.properties import Property
from settled.model.search.solver import Z3, Status
from settled.model.values import concrete, leaves, symbols

# Tried in this order for the trace that is shown; 4 reads well, 2 is the least at which rounding matters.
BLOCK_SIZES = (4, 2, 1)


class UndecidedError(RuntimeError):
    """The solver answered unknown at some length: nothing is claimed."""


@dataclass(frozen=True)
class Shortest:
    """A shortest violating trace: its choices, and the numbers that the solver chose (tokens)."""

    violates: Property
    choices: tuple[Choice, ...]
    prompt: int
    window: int
    block_size: int
    token: int
    connector: bool
    seconds: float

    @property
    def length(self) -> int:
        """Events after the request was added."""
        return len(self.choices)


def shortest_violation(setting: Setting, window: IntTerm, prop: Property, *, length_max: int = 8) -> Shortest | None:
    """The shortest violation within `length_max` events; None if there is none, for any window, block and prompt.

    Raises UndecidedError if the solver gives up at any length.
    """
    began = time.perf_counter()
    solver = Z3()
    state = initial(length_max)
    formulas = {**setting.assumptions(), "window >= 1": window >= 1}
    choices: list[Choice] = []
    for length in range(1, length_max + 1):
        choice = _symbolic_choice(length)
        formulas[f"event {length} can happen"] = guard(state, choice, setting)
        following = after(state, choice, setting)
        state = symbols(following, str(length))
        formulas[f"state {length}"] = both(*(new == old for new, old in zip(leaves(state), leaves(following), strict=True)))
        choices.append(choice)
        query = {**formulas, "violation": violated(state, setting, prop)}
        answer = solver.check(query)
        if answer.status is Status.UNKNOWN:
            raise UndecidedError(f"{prop} under {setting.discipline.name}: no answer at length {length}: {answer.reason}")
        if answer.status is Status.SAT:
            return _readable(solver, query, setting, window, prop, choices, began)
    return None


def _symbolic_choice(length: int) -> Choice:
    return Choice(*(int_variable(f"{name}@{length}") for name in Choice._fields))


def _readable(
    solver: Z3,
    query: dict[str, BoolTerm],
    setting: Setting,
    window: IntTerm,
    prop: Property,
    choices: Sequence[Choice],
    began: float,
) -> Shortest:
    """The same violation with a fixed block size and small numbers."""
    hits: IntTerm = as_int(0)
    total: IntTerm = as_int(0)
    for choice in choices:
        hits = hits + choice.hit
        total = total + choice.tokens + choice.drafts + choice.rejected
    index = int_variable("table index")
    objectives = [hits, setting.prompt, total, *(as_int(choice.move) for choice in choices), window, index]
    non_negative = both(*(as_int(leaf) >= 0 for choice in choices for leaf in choice))
    for block_size in BLOCK_SIZES:
        answer = solver.minimize(
            {
                **query,
                "table index": index >= 0,
                "whole blocks": both(setting.first == index * block_size, setting.last == setting.first + (block_size - 1)),
                "a window of two tokens or more": window >= 2,
                "no negative choices": non_negative,
                "hits of whole blocks": both(*(_is_multiple(choice.hit, block_size) for choice in choices)),
            },
            objectives,
        )
        if answer.status is Status.UNKNOWN:
            raise UndecidedError(f"{prop} under {setting.discipline.name}: no answer for block size {block_size}: {answer.reason}")
        if answer.status is Status.SAT:
            values = {"window": 0, **answer.values}
            return Shortest(
                prop,
                tuple(concrete(choice, values) for choice in choices),
                prompt=int(values["prompt"]),
                window=int(values["window"]),
                block_size=block_size,
                token=int(values["token"]),
                connector=setting.connector,
                seconds=time.perf_counter() - began,
            )
    raise UndecidedError(f"{prop} under {setting.discipline.name}: violated, but with none of the block sizes {BLOCK_SIZES}")


def _is_multiple(tokens: Int, block_size: int) -> BoolTerm:
    """Whether the tokens fill whole blocks; the division is by a constant."""
    return as_int(tokens) == as_int(tokens) // block_size * block_size
