"""A request, its counters, and the steps that carry it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from settled.model.events import PerGroup
from settled.reference.prefix_cache import extend_block_hashes

EOS_TOKEN_ID = 0  # a sampled 0 stops a request; prompts may contain it


class RequestStatus(Enum):
    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting_for_remote_kvs"  # has blocks, into which a load writes, or wrote
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


# A member of an enumeration, looked up through its class, costs as much as twenty global names.
RUNNING, FINISHED = RequestStatus.RUNNING, RequestStatus.FINISHED


@dataclass(slots=True, eq=False)
class Request:
    """A sequence being served. Every count is in tokens.

    `num_computed_tokens` is optimistic: it moves when a step is scheduled. `num_in_flight_tokens` are those of scheduled,
    unprocessed steps; `num_stale_output_tokens`, the part of them that was scheduled before the last preemption.
    `num_output_placeholders` stand for tokens that steps in flight will sample, drafts of those steps included.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int | None
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_stale_output_tokens: int = 0
    num_output_placeholders: int = 0
    num_draft_tokens: int = 0  # drafts that the next step may carry
    is_prefill_chunk: bool = True  # the last step of this generation left known tokens uncomputed, or there was none
    drop_stale_output: bool = False
    num_preemptions: int = 0
    generation: int = 0  # counts the resets of the computed count
    pending_load: int | None = None  # the job of a load into this generation's blocks that is not over
    num_stored_tokens: int = 0  # of which a store was started
    first_step_sequence: int = 0  # of the first step that was scheduled with the present blocks; meaningless before
    last_step_sequence: int = 0  # of the last one; 0 before the first
    unprocessed: deque[RequestStep] = field(default_factory=deque)  # oldest first; at most the pipeline depth
    block_hashes: list[int] = field(default_factory=list)  # chained, of known tokens
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt, and what has been sampled, accepted and processed."""
        return len(self.token_ids)

    @property
    def num_unscheduled_tokens(self) -> int:
        """Tokens, known or expected from steps in flight, that no step computes yet: 1 for a request that decodes."""
        return len(self.token_ids) + self.num_output_placeholders - self.num_computed_tokens

    @property
    def is_ready(self) -> bool:
        """Whether it may start. Stale output that will be delivered comes first: it may sample what would be next."""
        return self.num_stale_output_tokens == 0 or self.drop_stale_output

    @property
    def is_finished(self) -> bool:
        return self.status is FINISHED

    @property
    def counters(self) -> tuple[int, int, int]:
        """(computed, in flight, stale)."""
        return self.num_computed_tokens, self.num_in_flight_tokens, self.num_stale_output_tokens

    def hashes_up_to_now(self, tokens_per_hash: int) -> list[int]:
        """Chained hashes of the known tokens, `tokens_per_hash` each; sampled tokens of steps in flight are not known yet."""
        if (len(self.block_hashes) + 1) * tokens_per_hash <= len(self.token_ids):
            extend_block_hashes(self.block_hashes, self.token_ids, tokens_per_hash)
        return self.block_hashes

    def mark_stale(self) -> None:
        """Ends the generation: what is in flight comes back for nothing, or as tokens, and counts no more as computed."""
        self.num_stale_output_tokens = self.num_in_flight_tokens
        for entry in self.unprocessed:
            entry.stale = True

    def start_over(self, num_computed_tokens: int = 0) -> None:
        """Begins a generation at `num_computed_tokens`."""
        self.num_computed_tokens = num_computed_tokens
        self.num_output_placeholders = 0
        self.num_draft_tokens = 0
        self.is_prefill_chunk = True
        self.generation += 1


class StepIndices(NamedTuple):
    """Per group the table entries that a step may read and may write; nothing for kinds whose masks tell. Drafts in flight may leave
    several slots open; `known` says that they do not, so that the step does read and write all of them."""

    reads: PerGroup
    writes: PerGroup
    known: bool


@dataclass(slots=True, eq=False)
class RequestStep:
    """One request's part of one step. `start`, `tokens` and `drafts` are in tokens, as they stood when it was scheduled.

    `samples` says that the step computes the last known token, so that it samples 1 token and up to `drafts` more.
    `stale` is what the scheduler believes; `generation` counts the resets of the computed count before the step, whatever is believed.
    `indices`: of state kinds, whose masks do not tell.
    """

    request: Request
    step: int
    start: int
    tokens: int
    drafts: int
    samples: bool
    new_blocks: PerGroup
    resumed: bool
    generation: int
    external_tokens: int = 0  # a load within the step brings so many before `start`
    stale: bool = False
    load: int | None = None  # the job of that load
    indices: StepIndices | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """A scheduled step. `sequence` counts steps from 1 without gaps; `step` is the number that the trace shows."""

    step: int
    sequence: int
    entries: tuple[RequestStep, ...]
