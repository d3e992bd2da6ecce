"""Two roads to the same trace: Hypothesis finds a planted bug by random decisions and shrinks it; the solver proves a shortest one.

The shrunk list of decisions must be as short as the proof says, and no shorter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

from settled.model.disciplines import Discipline
from settled.model.events import Config, End, Event
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.model.specs import SlidingWindowSpec
from settled.proofs.refutations import REFUTATIONS, Refutation
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.engine import Engine, Outcome
from settled.reference.plan import PlanError
from settled.reference.scheduler import SchedulerError

SHORT = [refutation for refutation in REFUTATIONS if refutation.length <= 5]
# A prompt of one token comes first with Hypothesis; what is in flight of it is one token, which a flag counts right by chance.
LONGER = {"discard-flag": 1}


class Decision(NamedTuple):
    """What the host or the model does next; numbers in tokens.

    A step takes all that is left of the prompt but `held_back`, so the simplest step is the largest; after the prompt it is one token
    and `drafts`. What cannot be done is left out.
    """

    what: str
    held_back: int = 0
    drafts: int = 0
    rejected: int = 0


class Script(NamedTuple):
    """A prompt and what is done with it."""

    prompt_tokens: int
    decisions: tuple[Decision, ...]


decisions = st.one_of(
    st.builds(Decision, st.just("schedule"), st.integers(0, 8), st.integers(0, 3)),
    st.builds(Decision, st.just("process"), rejected=st.integers(0, 3)),
    st.just(Decision("preempt")),
    st.just(Decision("abort")),
)
scripts = st.builds(Script, st.integers(1, 9), st.lists(decisions, max_size=8).map(tuple))


def violates(script: Script, discipline: Discipline, prop: Property) -> bool:
    """Whether the reference, doing just this, breaks the property under the settled contract."""
    found: list[bool] = []
    monitors: list[Monitor] = []

    def sink(event: Event) -> None:
        if isinstance(event, Config):
            monitors.append(Monitor(event, Contract.SETTLED))
        found.extend(violation.property is prop for violation in monitors[-1].feed(len(found) + 1, event))

    config = EngineConfig(
        groups=(SlidingWindowSpec(block_size=4, window=2),),
        num_blocks=16,
        max_in_flight_steps=8,
        max_num_batched_tokens=16,
        num_speculative_tokens=3,
        max_model_len=24,
        kv_consumer=True,
        connector=True,
        stale_output_mode=StaleOutputMode.DROP,
        discipline=discipline,
    )
    engine = Engine(config, sink)
    engine.add_request("A", script.prompt_tokens)
    for decision in script.decisions:
        with suppress(PlanError, SchedulerError):
            take(engine, decision, script.prompt_tokens)
    found.extend(violation.property is prop for violation in monitors[-1].feed(1000, End(idle=False)))
    return any(found)


def take(engine: Engine, decision: Decision, prompt_tokens: int) -> None:
    match decision.what:
        case "schedule":
            left = prompt_tokens - engine.inspect("A").computed
            step = (max(1, left - decision.held_back), 0) if left > 0 else (1 + decision.drafts, decision.drafts)
            if engine.can_schedule:
                engine.schedule({"A": step})
        case "process":
            engine.process(lambda entry: Outcome(max(0, entry.drafts - decision.rejected)))
        case "preempt":
            engine.preempt("A")
        case "abort":
            engine.abort("A")


@pytest.mark.parametrize("refutation", SHORT, ids=lambda r: f"{r.discipline.name}-{r.violates}")
def test_a_planted_bug_shrinks_to_the_length_that_was_proved(refutation: Refutation) -> None:
    shrunk = find(
        scripts,
        lambda script: violates(script, refutation.discipline, refutation.violates),
        settings=settings(
            max_examples=20_000,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert len(shrunk.decisions) == refutation.length + LONGER.get(refutation.discipline.name, 0), shrunk


def test_every_short_refutation_is_tried() -> None:
    assert len(SHORT) >= 7
