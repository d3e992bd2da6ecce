"""Requests that start-up accepts finish under the right discipline; under three others they never do."""

from __future__ import annotations

import pytest

from settled.model.disciplines import CAP_WITHOUT_IN_FLIGHT, DISCIPLINES, PREEMPT_FENCED, RIGHT
from settled.proofs.progress import STEPS_MAX, progress, two_requests

STUCK = {PREEMPT_FENCED.name, CAP_WITHOUT_IN_FLIGHT.name, "discard-flag"}


@pytest.mark.parametrize("name", DISCIPLINES)
def test_three_disciplines_never_finish_and_all_others_do(name: str) -> None:
    assert progress(DISCIPLINES[name]).finishes == (name not in STUCK)


def test_preempting_what_is_fenced_gives_nothing_back() -> None:
    broken, right = two_requests(PREEMPT_FENCED), two_requests(RIGHT)
    assert broken.steps is None
    assert broken.preemptions > STEPS_MAX
    assert broken.freed_by_preempting == 0
    assert right.steps == 7
    assert right.freed_by_preempting > 0


def test_a_cap_without_what_is_in_flight_accepts_a_pool_that_is_too_small() -> None:
    assert progress(CAP_WITHOUT_IN_FLIGHT).smallest_pool is None
    assert progress(RIGHT).smallest_pool is not None
