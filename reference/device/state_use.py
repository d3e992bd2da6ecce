"""Which table indices a step of a state kind (Mamba) reads and writes, and after how many of its tokens each state stands there.

Sources: vLLM's mamba_utils.py (copies before and after a forward pass) and MambaManager, as the reference's manager describes them. The
indices follow the start as it was scheduled, which counts drafts in flight as accepted; the states themselves follow the true start.
"""

from __future__ import annotations

from typing import NamedTuple

from settled.model.specs import MambaSpec
from settled.reference.device.foresight import Entry


class StateUse(NamedTuple):
    """`read`: the table index of the state before the step (None: there is none yet). `writes`: (index, tokens of the step before it)."""

    read: int | None
    writes: tuple[tuple[int, int], ...]


def state_use(spec: MambaSpec, entry: Entry) -> StateUse:
    """What a step does to the states of one request."""
    if spec.mode == "none":
        return StateUse(_read_in_place(entry), _write_in_place(spec, entry))
    return StateUse(_read_aligned(spec, entry), _write_aligned(spec, entry))


# ---- mode none: the first slots, overwritten in place ----------------------------------------------------------------


def _read_in_place(entry: Entry) -> int | None:
    """The state after the last accepted token of the step before."""
    if entry.start == 0:
        return None
    previous = entry.previous
    return 0 if previous is None else previous.drafts - previous.rejected


def _write_in_place(spec: MambaSpec, entry: Entry) -> tuple[tuple[int, int], ...]:
    """Slot 0 after the tokens that are no drafts, the next slot after each draft."""
    known = entry.tokens - entry.drafts
    return tuple([(slot, known + slot) for slot in range(min(entry.drafts, spec.num_speculative_blocks) + 1)])


# ---- mode align: the running index, draft slots behind it, filled blocks ---------------------------------------------


def _running(spec: MambaSpec, entry: Entry) -> int:
    return (entry.end - 1) // spec.block_size


def _read_aligned(spec: MambaSpec, entry: Entry) -> int | None:
    if entry.start == 0:
        return None
    previous = entry.previous
    if previous is None:
        return (entry.start - 1) // spec.block_size  # the state with which a hit or a load ends
    running = _running(spec, previous)
    filled = _filled(spec, previous)
    if filled is not None and filled == running:
        return running  # the last state was copied into the block that it fills
    return running + min(previous.drafts - previous.rejected, spec.num_speculative_blocks)


def _write_aligned(spec: MambaSpec, entry: Entry) -> tuple[tuple[int, int], ...]:
    running, known = _running(spec, entry), entry.tokens - entry.drafts
    writes = [(running + slot, known + slot) for slot in range(min(entry.drafts, spec.num_speculative_blocks) + 1)]
    filled = _filled(spec, entry)
    if filled is not None:
        writes.append((filled, (filled + 1) * spec.block_size - entry.start))
    return tuple(writes)


def _filled(spec: MambaSpec, entry: Entry) -> int | None:
    """The index of a block into which a state is copied: accepted tokens reach its end at the last token that is no draft, or behind."""
    end = entry.start + entry.tokens
    blocks = (end - entry.rejected) // spec.block_size
    return blocks - 1 if blocks and blocks * spec.block_size >= end - entry.drafts else None
