"""Hypothesis strategies: configurations that the engine accepts, and what is decided in them.

They draw what `settled.reference.decoder` decodes, number by number, so every example is valid, lies near the boundaries where faults are,
and shrinks to small blocks, few decisions and small numbers. For your own tests:

    @given(workloads())
    def test_nothing_is_violated(case):
        assert not run_case(case).found
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from settled.model.disciplines import RIGHT, Discipline
from settled.reference.config import EngineConfig
from settled.reference.decisions import Decision
from settled.reference.decoder import Case, ConfigSpace, Numbers, read_config, read_decision, with_decisions

DECISIONS_MAX = 60


class DrawnNumbers(Numbers):
    """Numbers that Hypothesis chooses, and shrinks to 0."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        super().__init__()
        self.draw = draw

    def next(self, bound: int) -> int:
        return self.draw(st.integers(0, bound - 1))


def engine_configs(
    *,
    kinds: Sequence[str] = (),
    groups_max: int = 3,
    block_sizes: Sequence[int] = ConfigSpace().block_sizes,
    max_in_flight_steps: int = ConfigSpace().max_in_flight_steps,
    num_speculative_tokens: int = ConfigSpace().num_speculative_tokens,
    max_model_len: int = ConfigSpace().max_model_len,
    discipline: Discipline = RIGHT,
) -> st.SearchStrategy[EngineConfig]:
    """Configurations that the engine accepts.

    `kinds` are names of attention kinds, all that the reference has if empty; `block_sizes` in tokens, the simplest first; the other
    arguments are the most that is drawn: groups, steps of pipeline depth, drafts a step, tokens. Windows lie one token around multiples
    of the block size, and pools at what start-up sizing asks for, or a few blocks above. Raises ValueError for an unknown kind or a
    number out of range.
    """
    space = ConfigSpace(
        kinds=tuple(kinds),
        groups_max=groups_max,
        block_sizes=tuple(block_sizes),
        max_in_flight_steps=max_in_flight_steps,
        num_speculative_tokens=num_speculative_tokens,
        max_model_len=max_model_len,
        discipline=discipline,
    )
    return _configs(space)


def scripts(*, decisions_max: int = DECISIONS_MAX) -> st.SearchStrategy[tuple[Decision, ...]]:
    """Decisions for any configuration, in the order in which they are taken: `Player.take` does what can be done and leaves out the rest.

    Prompt lengths and drafts are given relative to the configuration: a prompt is one token around a block, a window or the batch, an
    output rejects no, some or all drafts.
    """
    return st.lists(_decisions(), max_size=decisions_max).map(tuple)


def workloads(space: ConfigSpace | None = None, *, decisions_max: int = DECISIONS_MAX) -> st.SearchStrategy[Case]:
    """A configuration and its decisions. `Case.numbers` in hexadecimal is what `settled fuzz --case` takes."""
    return _cases(space or ConfigSpace(), decisions_max)


@st.composite
def _configs(draw: st.DrawFn, space: ConfigSpace) -> EngineConfig:
    return read_config(DrawnNumbers(draw), space)


@st.composite
def _decisions(draw: st.DrawFn) -> Decision:
    return read_decision(DrawnNumbers(draw))


@st.composite
def _cases(draw: st.DrawFn, space: ConfigSpace, decisions_max: int) -> Case:
    numbers = DrawnNumbers(draw)
    of_config = Case(read_config(numbers, space), (), bytes(numbers.taken))
    return with_decisions(of_config, draw(scripts(decisions_max=decisions_max)))
