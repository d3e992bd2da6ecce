"""The properties and the contracts under which they are judged: the same names in proofs, monitor reports and documents."""

from __future__ import annotations

from enum import StrEnum


class Property(StrEnum):
    """A named predicate over a trace. `meaning` says it in one sentence."""

    READ_RESIDENT = "read_resident"
    ROLLBACK_RESIDENT = "rollback_resident"
    WRITE_OWNED = "write_owned"
    SINGLE_OWNER = "single_owner"
    COUNTERS_SYMMETRIC = "counters_symmetric"
    HELD_BOUNDED = "held_bounded"

    @property
    def meaning(self) -> str:
        return _MEANING[self]


class Contract(StrEnum):
    """What makes a free safe. From schedule to process, which loss of a block is a violation?"""

    SETTLED = "settled"  # any free or reallocation, by the host's clock
    STREAM_ORDER = "stream_order"  # an access by a writer that is not ordered after the step: a load on another stream
    EVENT = "event"  # an access whose stream did not wait for the block's event

    @property
    def meaning(self) -> str:
        return _CONTRACT[self]


_MEANING = {
    Property.READ_RESIDENT: "no unprocessed step reads a block that is null, free or someone else's",
    Property.ROLLBACK_RESIDENT: "after any rejection, all that the next step reads is still resident",
    Property.WRITE_OWNED: "no unprocessed step writes a block that its request has lost, or that others share",
    Property.SINGLE_OWNER: "reference counts equal holders, free exactly at zero, never freed twice, null never owned",
    Property.COUNTERS_SYMMETRIC: "in flight is the sum over unprocessed steps, 0 when idle; computed is what events say",
    Property.HELD_BOUNDED: "after its own prune a request holds no whole block below its need, nor more than its cap",
}
_CONTRACT = {
    Contract.SETTLED: "freeing or reallocating a block under an unprocessed step that uses it is the violation",
    Contract.STREAM_ORDER: "the violation is an access by a writer not ordered after the step (a load)",
    Contract.EVENT: "the violation is an access whose stream did not wait for the block's event",
}
