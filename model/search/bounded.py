"""Bounded model checking: the shortest trace that violates a claim under a discipline, or the proof that none is as short.

At each length, shortest first, the solver is asked for a violation at exactly that length, with any window, any block, any prompt. Every
length below the answer was unsatisfiable, so the trace is a shortest one. Only then is a block size fixed and the numbers made small.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from settled.model.algebra import BoolTerm, Int, IntTerm, as_int, both, int_variable
from settled.model.explicit import Choice, Claim, Move, Setting, after, guard, initial, violated
from settled.model.kinds import Kind, SlidingWindow
from settled.model.search.solver import Z3, Status
from settled.model.values import concrete

WINDOW = int_variable("window")
# Tried in this order for the trace that is shown; 4 reads well, 2 is the least at which rounding matters.
BLOCK_SIZES = (4, 2, 1)


class UndecidedError(RuntimeError):
    """The solver answered unknown at some length: nothing is claimed."""


@dataclass(frozen=True)
class Shortest:
    """A shortest violating trace: its choices, and the numbers that the solver chose (tokens)."""

    violates: Claim
    choices: tuple[Choice, ...]
    kind: Kind
    prompt: int
    block_size: int
    token: int
    drafts_max: int
    connector: bool
    seconds: float

    @property
    def length(self) -> int:
        """Events after the request was added."""
        return len(self.choices)


def shortest_violation(setting: Setting, claim: Claim, *, length_max: int = 8) -> Shortest | None:
    """The shortest violation within `length_max` events; None if there is none, for any block, prompt, and parameter of the kind.

    Raises UndecidedError if the solver gives up at any length.
    """
    began = time.perf_counter()
    solver = Z3()
    state = initial(length_max)
    formulas = {**setting.assumptions(), "window >= 1": WINDOW >= 1}
    choices: list[Choice] = []
    for length in range(1, length_max + 1):
        choice = _symbolic_choice(length)
        formulas[f"event {length} can happen"] = guard(state, choice, setting)
        state = after(state, choice, setting)
        choices.append(choice)
        query = {**formulas, "violation": violated(state, setting, claim)}
        answer = solver.check(query)
        if answer.status is Status.UNKNOWN:
            raise UndecidedError(f"{claim.prop} under {setting.discipline.name}: no answer at length {length}: {answer.reason}")
        if answer.status is Status.SAT:
            moves = [move == int(answer.values[move.args[0]]) for move in (as_int(choice.move) for choice in choices)]
            return _readable(solver, {**query, "the same moves": both(*moves)}, setting, claim, choices, began)
    return None


def _symbolic_choice(length: int) -> Choice:
    return Choice(*(int_variable(f"{name}@{length}") for name in Choice._fields))


def _readable(
    solver: Z3,
    query: dict[str, BoolTerm],
    setting: Setting,
    claim: Claim,
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
    objectives = [hits, setting.prompt, total, setting.drafts_max, WINDOW, index]
    non_negative = both(*(as_int(leaf) >= 0 for choice in choices for leaf in choice))
    for block_size in BLOCK_SIZES:
        answer = solver.minimize(
            {
                **query,
                "table index": index >= 0,
                "whole blocks": both(setting.first == index * block_size, setting.last == setting.first + (block_size - 1)),
                "a window of two tokens or more": WINDOW >= 2,
                "no negative choices": non_negative,
                "hits of whole blocks": _are_multiples("hit", [choice.hit for choice in choices], block_size),
                "tables of whole blocks": _are_multiples("slots", [choice.slots for choice in choices], block_size),
            },
            objectives,
        )
        if answer.status is Status.UNKNOWN:
            raise UndecidedError(f"{claim.prop} under {setting.discipline.name}: no answer for block size {block_size}: {answer.reason}")
        if answer.status is Status.SAT:
            return Shortest(
                claim,
                tuple(_told(concrete(choice, answer.values)) for choice in choices),
                kind=_with_numbers(setting.kind, answer.values),
                prompt=int(answer.values["prompt"]),
                block_size=block_size,
                token=int(answer.values["token"]),
                drafts_max=int(answer.values["drafts a step"]),
                connector=setting.connector,
                seconds=time.perf_counter() - began,
            )
    raise UndecidedError(f"{claim.prop} under {setting.discipline.name}: violated, but with none of the block sizes {BLOCK_SIZES}")


def _with_numbers(kind: Kind, values: Mapping[str, int | bool]) -> Kind:
    """The kind with the window that the solver chose, if it has one."""
    return SlidingWindow(int(values["window"])) if isinstance(kind, SlidingWindow) else kind


def _told(choice: Choice) -> Choice:
    """What a move does not read is 0."""
    return choice if choice.move == Move.SCHEDULE else choice._replace(slots=0)


def _are_multiples(name: str, tokens: Sequence[Int], block_size: int) -> BoolTerm:
    """Whether each number of tokens fills whole blocks: how many is the solver's choice, which is easier than a division."""
    return both(*(as_int(number) == int_variable(f"{name} {index}") * block_size for index, number in enumerate(tokens)))
