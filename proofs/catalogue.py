"""Every theorem and every refutation, by name."""

from __future__ import annotations

from settled.proofs.caps import CAPS
from settled.proofs.counters import COUNTERS_SYMMETRIC, SETTLED_IS_TRUE_START, SYNCHRONOUS_UNCHANGED
from settled.proofs.fence import FENCED, FINISH_PRUNED, PRUNE_FENCED
from settled.proofs.local_subtraction import LOCALLY_SUBTRACTED
from settled.proofs.residency import READ_RESIDENT, ROLLBACK_RESIDENT
from settled.proofs.theorem import Theorem
from settled.proofs.tightness import TIGHT

THEOREMS: dict[str, Theorem] = {
    theorem.key: theorem
    for theorem in (
        COUNTERS_SYMMETRIC,
        SETTLED_IS_TRUE_START,
        READ_RESIDENT,
        ROLLBACK_RESIDENT,
        TIGHT,
        SYNCHRONOUS_UNCHANGED,
        LOCALLY_SUBTRACTED,
        CAPS,
        FENCED,
        FINISH_PRUNED,
        PRUNE_FENCED,
    )
}
