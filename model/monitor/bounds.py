"""`held_bounded`: after its own prune a request holds no whole block below its need, and never more than its admission cap.

The need is judged at max(0, C - F), which every right discipline prunes by at least, with the counters before the step. Groups
without a recorded `cap` are not checked.
"""

from __future__ import annotations

from settled.model.events import NULL_BLOCK
from settled.model.monitor import masks
from settled.model.monitor.findings import Findings
from settled.model.monitor.masks import Mask
from settled.model.monitor.state import Request, Table
from settled.model.monitor.violation import Violation
from settled.model.properties import Property


class Bounds:
    """Checks tables against caps (blocks) and against the kind's claim of what is skipped."""

    def __init__(self, modelled: list[bool], caps: list[int | None], findings: Findings) -> None:
        self.checked = [group for group, is_modelled in enumerate(modelled) if is_modelled and caps[group] is not None]
        self._caps = caps
        self._findings = findings

    def grew(self, request: Request, group: int, line: int) -> None:
        """Blocks entered a table: at most the cap may be held."""
        cap, held = self._caps[group], request.tables[group].held
        if cap is not None and held > cap and group in self.checked:
            what = f"request {request.name} holds {held} blocks of group {group}, above its admission cap of {cap}"
            self._report("above_cap", what, line, request, group, None, None)

    def pruned(self, request: Request, line: int, only: int | None = None) -> None:
        """The request has just pruned, perhaps one group only: nothing below its need is held."""
        basis = masks.processed_tokens(request.computed, request.in_flight)
        for group, mask, table in request.bounded:
            if basis <= table.kept_to or not table.held or only not in (None, group):
                continue
            index = table.lowest_prunable() if mask.prunes_in_order else _lowest_skipped(table, mask, basis)
            if index is not None and mask.prunes_in_order:
                table.kept_to = mask.kept_to(index)
                if basis <= table.kept_to:
                    continue
            if index is not None:
                block = table.blocks[index]
                what = f"request {request.name} still holds block {block} at index {index} of group {group} after its prune"
                why = f"{what}, though nothing from token {basis} on needs it"
                self._report("below_need", why, line, request, group, index, block)

    def _report(self, cause: str, what: str, line: int, request: Request, group: int, index: int | None, block: int | None) -> None:
        self._findings.add(
            Violation(
                property=Property.HELD_BOUNDED,
                contract=self._findings.contract,
                line=line,
                cause=cause,
                detail=what,
                request=request.name,
                group=group,
                index=index,
                block=block,
            )
        )


def _lowest_skipped(table: Table, mask: Mask, basis: int) -> int | None:
    """The lowest index that holds a block which a prune on `basis` takes, where such blocks have gaps between."""
    held = (index for index, block in enumerate(table.blocks) if block != NULL_BLOCK)
    return next((index for index in held if mask.is_skipped(index, basis)), None)
