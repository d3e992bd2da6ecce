"""A bound in steps within which every request must finish once nothing new comes in; and what is plain about one that does not."""

from __future__ import annotations

from typing import Any

from settled.reference.engines.vllm.inspection_view import View

_PREEMPTIONS_MIN = 8  # of the oldest request, which no other displaces: it is preempted for its own sake, again and again


def hindrance(scheduler: Any) -> str:
    """What becomes of the oldest request when it does not finish, and what is plain about it; "" if there is none.

    The words have no numbers, so that they tell causes apart, not workloads.
    """
    unfinished = [request for request in scheduler.requests.values() if not request.is_finished()]
    if not unfinished:
        return ""
    view, oldest = View(scheduler), unfinished[0]
    facts = sorted(set(view.kinds))
    if view.lookahead:
        facts.append("lookahead")
    if view.pool.num_gpu_blocks - 1 < sum(map(view.sizing_cap, range(len(view.managers)))):
        facts.append("no room for the null block")
    return f"{_fate(oldest, scheduler)}[{', '.join(facts)}]"


def _fate(request: Any, scheduler: Any) -> str:
    if getattr(request, "num_preemptions", 0) >= _PREEMPTIONS_MIN:  # 0.11.0 does not count them
        return "preempted for ever"
    if request in scheduler.running:
        return "running and not scheduled"
    return "waiting for a load" if request.status.name == "WAITING_FOR_REMOTE_KVS" else "never admitted"


def steps_to_finish_max(scheduler: Any, max_in_flight_steps: int, transfers: int = 0) -> int:
    """Steps, empty ones counted, in which a scheduler must finish all its requests when steps are scheduled and processed by turns, no
    request is added, and each of its unfinished `transfers` is reported to it within `max_in_flight_steps` steps of its turn.

    Derived for any pool that a start-up check accepts: one request of the greatest length fits. The oldest running request is never
    preempted for another (the newest is the victim), so from the moment at which it is the oldest it only goes on. What it may wait for
    then is that the steps in flight are processed, for a victim's deferred free or its own stale output: at most `max_in_flight_steps`
    steps for each of its own, which computes at least one token. Counted from 0, as if preempted first, it computes each token of its
    sequence once, and each token that it may still sample once more. Then the next request is the oldest. A request that waits for a
    load is passed over, so each transfer adds its own wait, and one start from 0 if it fails.
    """
    wait = 1 + max_in_flight_steps
    lengths = [_tokens_left_max(request, scheduler.max_model_len) for request in scheduler.requests.values()]
    longest = max(lengths, default=0)
    return wait * (sum(lengths) + transfers * (1 + longest) + len(lengths) + 1)


def _tokens_left_max(request: Any, max_model_len: int) -> int:
    """Tokens that a request computes at most, from 0 to its end."""
    return int(min(request.num_prompt_tokens + request.max_tokens, max_model_len))
