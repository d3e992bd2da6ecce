"""References that belong to no request: of copies to be made, and of connectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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

    def drop(self, holder: str, blocks: Sequence[int], freed: Sequence[int]) -> bool:
        """One reference less of each; whether the holder has them all."""
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
        self._recording.emit(Drop(holder=holder, blocks=tuple(blocks), freed=tuple(freed)))
        return True

    def holds(self, holder: str, blocks: Sequence[int]) -> bool:
        """Whether a holder has all these references."""
        held: Counter[int] = sum((held for (name, _), held in self.held.items() if name == holder), Counter())
        return not Counter(blocks) - held

    def any_that_holds(self, blocks: Sequence[int]) -> str | None:
        """The first holder that has all these references."""
        return next((name for name, _ in self.held if self.holds(name, blocks)), None)
