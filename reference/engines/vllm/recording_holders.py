"""References that belong to no request: of copies to be made, and of connectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Literal

from settled.model.events import Drop, Hold
from settled.reference.engines.vllm.recording_live import Recording

COPIES = "copy_on_write"
CONNECTOR = "connector"
ENGINE = "engine"  # blocks that were in use before the first request

HolderKind = Literal["pin", "copy"]


class Holders:
    """Who else holds which block, how often."""

    def __init__(self, recording: Recording) -> None:
        self.held: dict[tuple[str, HolderKind], Counter[int]] = {}
        self._recording = recording

    def hold(self, holder: str, kind: HolderKind, blocks: Sequence[int]) -> None:
        """One reference more of each."""
        self.held.setdefault((holder, kind), Counter()).update(blocks)
        self._recording.emit(Hold(holder=holder, kind=kind, blocks=tuple(blocks)))

    def take_over(self, holder: str, blocks: Sequence[int]) -> None:
        """References of somebody who is forgotten become a holder's; nothing is told."""
        self.held.setdefault((holder, "pin"), Counter()).update(blocks)

    def drop(self, holder: str, blocks: Sequence[int], freed: Set[int]) -> bool:
        """One reference less of each; whether the holder has them all. A block that stands twice in `blocks` is freed once: two copies of
        one source end together."""
        if not self.holds(holder, blocks):
            return False
        for block in blocks:
            key = next(key for key, held in self.held.items() if key[0] == holder and held[block])
            held = self.held[key]
            held[block] -= 1
            if not held[block]:
                del held[block]
                if not held:
                    del self.held[key]
        self._recording.emit(
            Drop(holder=holder, blocks=tuple(blocks), freed=tuple(dict.fromkeys([block for block in blocks if block in freed])))
        )
        return True

    def holds(self, holder: str, blocks: Sequence[int]) -> bool:
        """Whether a holder has all these references."""
        held: Counter[int] = sum((held for (name, _), held in self.held.items() if name == holder), Counter())
        return not Counter(blocks) - held

    def any_but_copies(self, blocks: Sequence[int]) -> str | None:
        """The first holder that has all these references. Copies are none: the scheduler says when it gives up theirs."""
        return next((name for name, _ in self.held if name != COPIES and self.holds(name, blocks)), None)

    def copied(self, source: int) -> None:
        """The copy of a block has been told of: from then on its reference is a pin. Nothing is told, a `copy` event says it."""
        held = self.held.get((COPIES, "copy"))
        if held and held[source]:
            held[source] -= 1
            if not held[source]:
                del held[source]
                if not held:
                    del self.held[COPIES, "copy"]
            self.take_over(COPIES, (source,))
