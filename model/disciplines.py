"""Disciplines: the choices an engine makes about when a block goes back to the pool, as plain data.

The right choice is the default of every field. A broken discipline changes one field, and names the property that it breaks.
`lifetime.py` says what each choice means for the proofs; the reference engine implements each choice a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class FreeBasis(StrEnum):
    """The token count up to which a prune takes the past for granted."""

    SETTLED = "settled"  # computed - (in flight - stale)
    PROCESSED = "processed"  # max(0, computed - in flight): what vLLM 0.26 and later use, a lower bound of settled
    COMPUTED = "computed"  # the optimistic count, advanced at schedule: vLLM 0.11 to 0.25
    LESS_DRAFTS = "less_drafts"  # max(0, computed - drafts a step): what vLLM's Mamba manager used to subtract by itself


class Rounding(StrEnum):
    """How many blocks a number of skipped tokens frees."""

    FLOOR = "floor"  # whole blocks only
    CEIL = "ceil"  # the block at the boundary too
    SHORT = "short"  # whole blocks only, and one fewer


class PruneFence(StrEnum):
    """When a pruned block goes back to the pool. Its table entry is null at once in any case."""

    NONE = "none"  # at once
    POOL = "pool"  # once every step scheduled before the prune is processed: the pool keeps it aside (vLLM #47653)
    CALLBACK = "callback"  # once the request's own steps scheduled before the prune are processed: the scheduler calls back


class StaleOutput(StrEnum):
    """What the output of a step of an earlier generation does to the counters."""

    DRAIN = "drain"  # in flight and stale fall by its tokens, computed stays
    APPLY = "apply"  # its rejections are taken off the computed count of the new generation too
    UNDRAINED = "undrained"  # it is dropped, and its tokens stay counted as in flight
    FLAG = (
        "flag"  # a preemption sets a flag, counted as one stale token: the next output is dropped, in flight by then or not, and no other
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Discipline:
    """The choices. `name` is what the command line calls them."""

    name: str
    summary: str
    free_basis: FreeBasis = FreeBasis.SETTLED
    rounding: Rounding = Rounding.FLOOR
    stale_output: StaleOutput = StaleOutput.DRAIN
    preempt_marks_stale: bool = True  # at a preemption, what is in flight becomes stale
    fence: bool = True  # a whole-request free waits for the request's unprocessed steps
    finish_basis: FreeBasis = FreeBasis.SETTLED  # of the prune before a connector is shown a finished request's table
    state_basis: FreeBasis | None = None  # of state kinds (Mamba) in place of free_basis, if not the same
    prune_fence: PruneFence = PruneFence.NONE  # a right basis needs none
    preempts_fenced: bool = False  # a victim whose blocks would wait behind the fence is preempted all the same
    cap_counts_in_flight: bool = True  # the admission cap of a windowed group has room for the tokens in flight
    prunes_with_drafts: bool = True  # before a step that carries drafts there is a prune like before any other
    nulls_at_allocation: bool = False  # table positions that the step's last query does not need get no block at all

    @property
    def prunes_in_full(self) -> bool:
        """Whether every schedule prunes, and takes all whole blocks that its count says may go."""
        return self.prunes_with_drafts and self.rounding is not Rounding.SHORT

    @property
    def is_right(self) -> bool:
        """Whether every choice is a right one."""
        right = replace(RIGHT, name=self.name, summary=self.summary)
        bases = replace(self, free_basis=_safe(self.free_basis), finish_basis=_safe(self.finish_basis))
        state_is_right = self.state_basis is None or _safe(self.state_basis) is FreeBasis.SETTLED
        return state_is_right and replace(bases, state_basis=None) == right


def _safe(basis: FreeBasis) -> FreeBasis:
    return FreeBasis.SETTLED if basis is FreeBasis.PROCESSED else basis


RIGHT = Discipline(name="settled", summary="free on the settled count, behind a fence")
VLLM = Discipline(
    name="vllm",
    summary="free on max(0, computed - in flight), behind a fence: vLLM 0.26 and later with a KV consumer",
    free_basis=FreeBasis.PROCESSED,
    finish_basis=FreeBasis.PROCESSED,
)
OPTIMISTIC = Discipline(
    name="optimistic",
    summary="free on the computed count, which a schedule advances",
    free_basis=FreeBasis.COMPUTED,
)
CEIL = Discipline(name="ceil", summary="round the freed blocks up at the window boundary", rounding=Rounding.CEIL)
KEEPS_ONE = Discipline(name="keeps-one", summary="stop a prune one block short of what is needed", rounding=Rounding.SHORT)
DRAFTS_UNPRUNED = Discipline(
    name="drafts-unpruned",
    summary="do not prune before a step that carries drafts",
    prunes_with_drafts=False,
)
STALE_APPLIED = Discipline(
    name="stale-applied",
    summary="apply the output of a preempted generation to the reset counters",
    stale_output=StaleOutput.APPLY,
)
UNDRAINED = Discipline(
    name="undrained",
    summary="do not drain the in-flight count of a preempted generation",
    stale_output=StaleOutput.UNDRAINED,
)
DISCARD_FLAG = Discipline(
    name="discard-flag",
    summary="drop exactly one output after a preemption, whether or not so many were in flight",
    free_basis=FreeBasis.PROCESSED,  # which does not rely on the stale count, and so not on the flag
    finish_basis=FreeBasis.PROCESSED,
    stale_output=StaleOutput.FLAG,
)
STALE_UNMARKED = Discipline(
    name="stale-unmarked",
    summary="do not mark the in-flight tokens stale at a preemption",
    preempt_marks_stale=False,
)
NO_FENCE = Discipline(name="no-fence", summary="free a whole request while its steps are in flight", fence=False)
RAW_FINISH = Discipline(
    name="raw-finish",
    summary="prune on the computed count before a connector's finish",
    finish_basis=FreeBasis.COMPUTED,
)
POOL_FENCE = Discipline(
    name="pool-fence",
    summary="free on the computed count, the pool keeps the blocks until the steps scheduled before are processed (vLLM #47653)",
    free_basis=FreeBasis.COMPUTED,
    prune_fence=PruneFence.POOL,
)
CALLBACK = Discipline(
    name="callback",
    summary="free on the computed count, by a callback once the request's own steps scheduled before are processed",
    free_basis=FreeBasis.COMPUTED,
    prune_fence=PruneFence.CALLBACK,
)
MAMBA_LOCAL = Discipline(
    name="mamba-local",
    summary="free states on the computed count less a step's drafts, as vLLM's Mamba manager did by itself",
    state_basis=FreeBasis.LESS_DRAFTS,
)
LOCAL_SUBTRACTION = Discipline(
    name="local-subtraction",
    summary="free on the computed count less a step's drafts, for every kind",
    free_basis=FreeBasis.LESS_DRAFTS,
)
PREEMPT_FENCED = Discipline(
    name="preempt-fenced",
    summary="preempt requests whose blocks wait behind the fence, which frees nothing (vLLM #49674)",
    preempts_fenced=True,
)
CAP_WITHOUT_IN_FLIGHT = Discipline(
    name="cap-without-in-flight",
    summary="admission caps that leave out the tokens in flight",
    cap_counts_in_flight=False,
)
NULL_AT_ALLOCATION = Discipline(
    name="null-at-allocation",
    summary="no blocks for what the last query of a step does not need, though earlier ones do (vLLM #55818)",
    nulls_at_allocation=True,
)

DISCIPLINES: dict[str, Discipline] = {
    discipline.name: discipline
    for discipline in (
        RIGHT,
        VLLM,
        OPTIMISTIC,
        CEIL,
        KEEPS_ONE,
        DRAFTS_UNPRUNED,
        STALE_APPLIED,
        UNDRAINED,
        DISCARD_FLAG,
        STALE_UNMARKED,
        NO_FENCE,
        RAW_FINISH,
        POOL_FENCE,
        CALLBACK,
        MAMBA_LOCAL,
        LOCAL_SUBTRACTION,
        PREEMPT_FENCED,
        CAP_WITHOUT_IN_FLIGHT,
        NULL_AT_ALLOCATION,
    )
}
