"""Two roads to the same trace: Hypothesis finds a planted bug by random decisions and shrinks it; the solver proves a shortest one.

The shrunk list of decisions must be as short as the proof says, and no shorter.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

from settled.model.disciplines import DISCIPLINES, LOCAL_SUBTRACTION, PREEMPT_FENCED, RAW_FINISH
from settled.model.events import Config, End, Event
from settled.model.kinds import SlidingWindow
from settled.model.monitor import Loss, Monitor
from settled.model.properties import Property
from settled.model.specs import SlidingWindowSpec
from settled.proofs.refutations import REFUTATIONS, Refutation
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.engine import Engine, Outcome
from settled.reference.plan import PlanError
from settled.reference.scheduler import SchedulerError

pytestmark = pytest.mark.slow

# Left out: a write of a null entry, of five decisions of which one rejects a whole window, too rare for random decisions; what needs a
# chunk held back, or a prompt that ends at the right place, which shrinking undoes at the price of decisions: a state kind, and the
# rollbacks of four events.
SHORT = [
    known
    for known in REFUTATIONS
    if isinstance(known.kind, SlidingWindow) and (known.length <= 3 or (known.violates is Property.ROLLBACK_RESIDENT and known.length == 5))
]


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


def scripts(refutation: Refutation) -> st.SearchStrategy[Script]:
    """Scripts of up to eight decisions; another request comes only where nothing else can take a block."""
    drafts_max = config_for(refutation).num_speculative_tokens
    decisions = [
        st.builds(Decision, st.just("schedule"), st.integers(0, 8), st.integers(0, drafts_max)),
        st.builds(Decision, st.just("process"), rejected=st.integers(0, drafts_max)),
        st.just(Decision("preempt")),
        st.just(Decision("abort")),
    ]
    if refutation.discipline is RAW_FINISH:
        decisions.append(st.just(Decision("another")))
    prompts = st.integers(1, 9).map(lambda shorter: 10 - shorter)  # the simplest is the longest: it fills blocks in one decision
    return st.builds(Script, prompts, st.lists(st.one_of(decisions), max_size=8).map(tuple))


CONFIG = EngineConfig(
    groups=(SlidingWindowSpec(block_size=4, window=2),),
    num_blocks=16,
    max_in_flight_steps=8,
    max_num_batched_tokens=16,
    num_speculative_tokens=3,
    max_model_len=24,
    kv_consumer=True,
    connector=True,
    stale_output_mode=StaleOutputMode.DROP,
)


def config_for(refutation: Refutation) -> EngineConfig:
    """Few drafts where they are subtracted; where that makes a request hold too much, more of them than are in flight."""
    config = replace(CONFIG, discipline=refutation.discipline)
    if refutation.discipline is LOCAL_SUBTRACTION and refutation.violates is Property.HELD_BOUNDED:
        return replace(config, num_speculative_tokens=6, max_num_batched_tokens=7, max_in_flight_steps=1)
    if refutation.discipline is LOCAL_SUBTRACTION:
        return replace(config, num_speculative_tokens=1)
    return config


def violates(script: Script, refutation: Refutation) -> bool:
    """Whether the reference, doing just this, breaks what the refutation names."""
    found: list[bool] = []
    monitors: list[Monitor] = []
    claim = refutation.claim

    def judge(line: int, event: Event) -> None:
        violations = monitors[-1].feed(line, event)
        in_flight = (not (claim.in_flight and violation.cause.startswith(Loss.ABSENT)) for violation in violations)
        found.extend(violation.property is claim.prop and counts for violation, counts in zip(violations, in_flight, strict=True))

    def sink(event: Event) -> None:
        if isinstance(event, Config):
            monitors.append(Monitor(event, claim.contract))
        judge(len(found) + 1, event)

    engine = Engine(config_for(refutation), sink)
    engine.add_request("A", script.prompt_tokens)
    for decision in script.decisions:
        with suppress(PlanError, SchedulerError):
            take(engine, decision, script.prompt_tokens)
    judge(1000, End(idle=False))
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
        case "another" if engine.can_schedule:
            engine.add_request("B", 1)
            engine.schedule({"B": (1, 0)})


@pytest.mark.parametrize("refutation", SHORT, ids=lambda r: r.name)
def test_a_planted_bug_shrinks_to_the_length_that_was_proved(refutation: Refutation) -> None:
    shrunk = find(
        scripts(refutation),
        lambda script: violates(script, refutation),
        settings=settings(
            max_examples=20_000,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert len(shrunk.decisions) == refutation.length, shrunk


def test_every_short_refutation_is_tried() -> None:
    assert len(SHORT) >= 25


def test_every_broken_discipline_is_tried() -> None:
    """But for one of 6 decisions, one of a state kind, and one that is shown by a run."""
    broken = {name for name, discipline in DISCIPLINES.items() if not discipline.is_right}
    assert broken - {refutation.discipline.name for refutation in SHORT} == {
        "stale-applied",
        "mamba-local",
        PREEMPT_FENCED.name,
    }
