"""What an output does to its request: counters, tokens, stop. Pure bookkeeping on the request; no block moves here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from settled.model.disciplines import StaleOutput
from settled.model.events import FinishReason
from settled.reference.request import EOS_TOKEN_ID, RUNNING, Request, RequestStep

FLAG = StaleOutput.FLAG


class ModelOutputError(ValueError):
    """The model returned a number of tokens that the step cannot have sampled."""


@dataclass(slots=True)
class Settlement:
    """What an output came to, in tokens: `sampled` (of a live step, those kept), `rejected` (drafts; of a live step all that was
    rolled back, trimmed ones too)."""

    sampled: int
    rejected: int
    is_live: bool
    finish_reason: FinishReason | None


def check_model_output(entry: RequestStep, token_ids: Sequence[int]) -> None:
    """Raises ModelOutputError unless the step can have sampled so many tokens: none, or 1 + accepted drafts."""
    fewest, most = (1, 1 + entry.drafts) if entry.samples else (0, 0)
    if not fewest <= len(token_ids) <= most:
        raise ModelOutputError(
            f"step {entry.step}, request {entry.request.request_id}: {len(token_ids)} tokens sampled, expected {fewest} to {most}"
        )


def settle_output(entry: RequestStep, token_ids: Sequence[int], stale_output: StaleOutput, max_model_len: int) -> Settlement:
    """Takes the oldest unprocessed step of a request off its counters and its tokens onto the sequence.

    A stale output says what it rejected as well: later steps of its generation start that much lower on the device, although nothing
    is rolled back here.
    """
    request = entry.request
    assert request.unprocessed[0] is entry, f"request {request.request_id}: step {entry.step} is not the oldest"
    request.unprocessed.popleft()
    rejected_drafts = 1 + entry.drafts - len(token_ids) if entry.samples else 0
    if stale_output is FLAG:
        entry.stale = request.num_stale_output_tokens > 0  # the flag is up: this output, whichever it is
    if entry.stale and stale_output is StaleOutput.UNDRAINED:
        return Settlement(len(token_ids), rejected_drafts, False, None)
    request.num_in_flight_tokens -= entry.tokens
    if entry.stale:
        request.num_stale_output_tokens -= 1 if stale_output is FLAG else entry.tokens
    if request.is_finished:
        return Settlement(len(token_ids), rejected_drafts, False, None)
    if entry.stale:
        return _settle_stale(request, token_ids, rejected_drafts, stale_output, max_model_len)
    return _settle_live(entry, token_ids, rejected_drafts, max_model_len)


def _settle_live(entry: RequestStep, token_ids: Sequence[int], rejected_drafts: int, max_model_len: int) -> Settlement:
    request = entry.request
    kept, reason = _append_tokens(request, token_ids, max_model_len)
    # Tokens after a stop were computed, but the sequence ends before them.
    rolled_back = _roll_back(request, rejected_drafts + len(token_ids) - kept)
    if entry.samples:
        # The output stands for one sampled token and all drafts, accepted or not. An output that a broken discipline takes
        # for live may find no placeholders.
        request.num_output_placeholders = max(0, request.num_output_placeholders - 1 - entry.drafts)
    return Settlement(kept, rolled_back, True, reason)


def _settle_stale(
    request: Request, token_ids: Sequence[int], rejected_drafts: int, stale_output: StaleOutput, max_model_len: int
) -> Settlement:
    if stale_output is StaleOutput.APPLY:
        _roll_back(request, rejected_drafts)
    if request.drop_stale_output:
        return Settlement(len(token_ids), rejected_drafts, False, None)
    _, reason = _append_tokens(request, token_ids, max_model_len)
    return Settlement(len(token_ids), rejected_drafts, False, reason)


def _roll_back(request: Request, num_tokens: int) -> int:
    """Takes tokens off the computed count; returns how many. A reset count has nothing to give, as in vLLM."""
    rolled_back = min(num_tokens, request.num_computed_tokens)
    request.num_computed_tokens -= rolled_back
    return rolled_back


def _append_tokens(request: Request, token_ids: Sequence[int], max_model_len: int) -> tuple[int, FinishReason | None]:
    """Appends tokens up to a stop; how many were kept, and why the request stops, if it does."""
    known, most = request.token_ids, max_model_len
    if request.max_tokens is not None:
        most = min(most, request.num_prompt_tokens + request.max_tokens)
    for kept, token_id in enumerate(token_ids, start=1):
        known.append(token_id)
        if token_id == EOS_TOKEN_ID:
            return kept, "stop"
        if len(known) >= most:
            return kept, "length"
    return len(token_ids), None


def can_cache_output(request: Request, settlement: Settlement) -> bool:
    """Whether processing this output made blocks of a running request final."""
    return settlement.is_live and settlement.sampled > 0 and request.status is RUNNING
