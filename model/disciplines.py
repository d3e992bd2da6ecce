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


class Rounding(StrEnum):
    """How many blocks a number of skipped tokens frees."""

    FLOOR = "floor"  # whole blocks only
    CEIL = "ceil"  # the block at the boundary too


class StaleOutput(StrEnum):
    """What the output of a step of an earlier generation does to the counters."""

    DRAIN = "drain"  # in flight and stale fall by its tokens, computed stays
    APPLY = "apply"  # its rejections are taken off the computed count of the new generation too
    UNDRAINED = "undrained"  # it is dropped, and its tokens stay counted as in flight


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

    @property
    def is_right(self) -> bool:
        """Whether every choice is a right one."""
        right = replace(RIGHT, name=self.name, summary=self.summary)
        return replace(self, free_basis=_safe(self.free_basis), finish_basis=_safe(self.finish_basis)) == right


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

DISCIPLINES: dict[str, Discipline] = {
    discipline.name: discipline
    for discipline in (
        RIGHT,
        VLLM,
        OPTIMISTIC,
        CEIL,
        STALE_APPLIED,
        UNDRAINED,
        STALE_UNMARKED,
        NO_FENCE,
        RAW_FINISH,
    )
}
