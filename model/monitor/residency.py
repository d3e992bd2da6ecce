"""`read_resident`, `rollback_resident` and `write_owned`: whether a step may rely on the blocks of its row.

From the schedule of a step to its processing, a block of its row can be lost in the ways of `Loss`; a contract says which of them
harm. Whether the step needs the block depends on its true start, which falls as earlier steps reject tokens: a loss is reported at
once if the step needs the block however far its start may still fall, and waits as a suspect otherwise. Once an output is
processed its step's true start is known, and its suspects are judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from settled.model.events import NULL_BLOCK, ComputedCause
from settled.model.monitor.findings import Findings
from settled.model.monitor.ledger import Ledger
from settled.model.monitor.masks import Mask
from settled.model.monitor.state import Entry, Note, Request, Suspect, Watch
from settled.model.monitor.violation import Loss, Violation, tokens_text
from settled.model.properties import Contract, Property

# A member of an enumeration, looked up through its class, costs as much as twenty global names.
ABSENT, FREED, REALLOCATED, LOADED_OVER, SHARED = Loss
READ_RESIDENT, ROLLBACK_RESIDENT, WRITE_OWNED = Property.READ_RESIDENT, Property.ROLLBACK_RESIDENT, Property.WRITE_OWNED

# Whether a loss harms what a step reads (False), what it writes (True), or both. A write into a free block harms nobody: `write_owned` is
# broken when the block has a new owner.
_IN_STREAM_ORDER = {ABSENT: (False, True), FREED: (), REALLOCATED: (), LOADED_OVER: (False, True), SHARED: (True,)}
_HARMED: dict[Contract, dict[Loss, tuple[bool, ...]]] = {
    Contract.SETTLED: {**_IN_STREAM_ORDER, FREED: (False,), REALLOCATED: (False, True)},
    Contract.STREAM_ORDER: _IN_STREAM_ORDER,
    Contract.EVENT: _IN_STREAM_ORDER,
}
_HOW = {
    FREED: "the block went back to the pool",
    REALLOCATED: "the block was reallocated to {}",
    LOADED_OVER: "{} could write into it, on a stream that does not wait for the step,",
    SHARED: "{} held the block too, and no prefix-cache entry says that the same bytes are written",
}


@dataclass(slots=True, eq=False)
class LossFacts:
    """What a violation says, taken down when it is certain; nothing of the request or the step is kept alive for it."""

    property: Property
    contract: Contract
    line: int
    cause: str
    loss: Loss
    taken_by: str | None
    written: bool
    step: int
    request: str
    group: int
    table_index: int
    block: int
    note: Note | None
    span: tuple[Mask, int, int, int]  # the mask, the step's start as it was known, its tokens, lookahead tokens

    def violation(self) -> Violation:
        """The violation in words."""
        note, (mask, start, tokens, lookahead) = self.note, self.span
        needed = mask.needed(start, tokens, self.table_index, lookahead, self.written)
        if self.loss is ABSENT:
            happened = _absent_text(self.block, note)
        else:
            happened = f"{_release_text(note)}{_HOW[self.loss].format(self.taken_by)} while the step was unprocessed"
        verb = "writes" if self.written else "reads"
        step = f"step {self.step} of request {self.request} {verb} {tokens_text(needed)}"
        where = f"through index {self.table_index} of its table in group {self.group} (block {self.block})"
        return Violation(
            property=self.property,
            contract=self.contract,
            line=self.line,
            cause=self.cause,
            detail=f"{step} {where}, but {happened}",
            step=self.step,
            request=self.request,
            group=self.group,
            index=self.table_index,
            block=self.block,
            needed=needed,
            freed_by=note.request if note else None,
            freed_at_line=note.line if note else None,
            release_cause=note.cause if note else None,
            taken_by=self.taken_by,
        )


@dataclass(frozen=True, slots=True)
class _Rollback:
    """Entries that the next step needs after a rollback and that are gone; void if the request finishes first."""

    request: Request
    line: int
    computed: int
    rejected: int
    because: ComputedCause | None
    missing: tuple[tuple[int, int, Note | None], ...]  # group, index, who released it


class Residency:
    """Judges losses, by the masks of each request; lookahead is in tokens."""

    def __init__(self, lookahead: int, ledger: Ledger, findings: Findings) -> None:
        self._ledger = ledger
        self._lookahead = lookahead
        self._findings = findings
        self._harmed = _HARMED[findings.contract]
        self.watches: dict[int, list[Watch]] = {}  # block → the steps that may use it though their request has released it
        self.rollbacks: dict[str, _Rollback] = {}  # those that wait for a finish, or for an event that tells there is none

    # ---- what an unprocessed step may lose ---------------------------------------------------------------------------

    def users(self, request: Request, group: int, first: int, last: int) -> list[Entry]:
        """The request's unprocessed steps that may use a block at a table index from `first` to `last`."""
        mask, lookahead = request.masks[group], self._lookahead
        if mask is None:
            return []
        return [entry for entry in request.unprocessed if mask.may_use_some(entry, group, first, last, lookahead)]

    def released(self, users: list[Entry], group: int, indices: tuple[int, ...], block: int, note: Note | None) -> None:
        """A request gives up a block, which steps see at one of the indices: those of `users` that may use it there are watched."""
        for entry in users:
            mask = _mask(entry.request, group)
            for seen in indices:
                if entry.row_block(group, seen) == block and mask.may_use(entry, group, seen, self._lookahead):
                    self.watches.setdefault(block, []).append(Watch(entry, group, seen, block, note))
                    if entry.watched is None:
                        entry.watched = []
                    entry.watched.append(block)

    def lost(self, block: int, loss: Loss, line: int, taken_by: str | None = None) -> None:
        """Something happened to a block; whoever is watched on it may be harmed."""
        watches = self.watches.get(block)
        if not watches:
            return
        if self._harmed[loss]:
            for watch in watches:
                self.judge(watch, loss, line, taken_by)
        if loss is REALLOCATED:
            self.reissued(block)

    def reissued(self, block: int) -> None:
        """A block was given out as a fresh one: who uses it from now on shares nothing with the steps that are watched on it."""
        watches = self.watches.get(block)
        if watches:
            self.watches[block] = [Watch(watch.entry, watch.group, watch.table_index, block, watch.note, True) for watch in watches]

    def judge(self, watch: Watch, loss: Loss, line: int, taken_by: str | None = None) -> None:
        """Reports what is certain of a loss, and keeps what is not as a suspect."""
        entry, group, index = watch.entry, watch.group, watch.table_index
        mask = _mask(entry.request, group)
        for written in self._harmed[loss]:
            needs = mask.needs(entry, group, index, self._lookahead, written)
            if needs is False:
                continue
            if needs:
                self._report(watch, loss, line, taken_by, written)
            elif entry.suspects is None:
                entry.suspects = [Suspect(watch, loss, line, taken_by, written)]
            else:
                entry.suspects.append(Suspect(watch, loss, line, taken_by, written))

    def shared(self, watch: Watch, line: int, taken_by: str) -> None:
        """Others hold a block of a step's row: it may write there only what the block's hash stands for."""
        entry = watch.entry
        mask = _mask(entry.request, watch.group)
        written = mask.written_span(entry, watch.group, watch.table_index, self._lookahead)
        if written is None or (mask.keeps_states and self._is_overwritten(watch, mask)):
            return
        if not self._ledger.has_content:
            reason = "a shared block is written, and no prefix-cache entries are recorded (no `content` in records)"
            self._findings.cannot_decide(WRITE_OWNED, reason)
            return
        same = self._ledger.same_bytes(entry.request.name, watch.group, watch.block, *written, ends_there=mask.keeps_states)
        if same is None:
            reason = "a shared block is written, and its prefix-cache entry does not tell whether it stands for the same tokens"
            self._findings.cannot_decide(WRITE_OWNED, reason)
        elif not same:
            self.judge(watch, SHARED, line, taken_by)

    def _is_overwritten(self, watch: Watch, mask: Mask) -> bool:
        """Whether a later step of the generation leaves another state in the block. Steps run in order: whoever uses the block from now
        on finds what the last of them writes, which is judged itself."""
        entry, group, index = watch.entry, watch.group, watch.table_index
        return any(
            later.order > entry.order
            and later.generation == entry.generation
            and later.row_block(group, index) == watch.block
            and mask.needs(later, group, index, self._lookahead, written=True) is True
            for later in entry.request.unprocessed
        )

    def undecidable(self, reason: str) -> None:
        """A loss that the trace cannot show to be harmless or harmful."""
        for name in (READ_RESIDENT, WRITE_OWNED):
            self._findings.cannot_decide(name, reason)

    def settle(self, entry: Entry) -> None:
        """The step's true start is known: its suspects are judged, and it is watched no longer."""
        for suspect in entry.suspects or ():
            watch = suspect.watch
            mask = _mask(entry.request, watch.group)
            if mask.needs_now(entry, watch.group, watch.table_index, self._lookahead, suspect.written):
                self._report(watch, suspect.loss, suspect.line, suspect.taken_by, suspect.written)
        for block in entry.watched or ():
            kept = [watch for watch in self.watches.get(block, ()) if watch.entry is not entry]
            if kept:
                self.watches[block] = kept
            else:
                self.watches.pop(block, None)
        entry.suspects = entry.watched = None

    # ---- at the schedule ---------------------------------------------------------------------------------------------

    def scheduled(self, entry: Entry, line: int) -> None:
        """Every table entry that the step reads or writes must name a block of its request."""
        start, lengths = entry.start, entry.lengths
        lowest, end = start - entry.rejectable, start + entry.tokens
        for group, mask, table in entry.request.modelled:
            if lowest >= table.clear_from and lengths[group] * mask.block_size >= end:
                continue
            for index in mask.absent(entry, group):
                self.judge(Watch(entry, group, index, entry.row_block(group, index), table.notes.get(index)), ABSENT, line)

    # ---- rollbacks ---------------------------------------------------------------------------------------------------

    def rolled_back(self, request: Request, line: int, rejected: int, *, because: ComputedCause | None = None) -> None:
        """The computed count fell, by an output unless it says `because` of what: all that the next step reads must be in the table still.

        If that very output ends the request there is no next step; the events after it tell.
        """
        missing: list[tuple[int, int, Note | None]] = []
        computed = request.computed
        for group, mask, table in request.modelled:
            if computed >= table.clear_from and len(table.blocks) * mask.block_size >= computed:
                continue
            missing += [(group, index, table.notes.get(index)) for index in mask.gone(request, group)]
        if missing:
            self.rollbacks[request.name] = _Rollback(request, line, request.computed, rejected, because, tuple(missing))

    def finished(self, request: Request) -> None:
        """There is no next step."""
        if self.rollbacks:
            self.rollbacks.pop(request.name, None)

    def no_finish_followed(self, request: Request | None = None) -> None:
        """What waited for a finish is reported: of one request, or of all."""
        if not self.rollbacks:
            return
        for name in [request.name] if request else list(self.rollbacks):
            found = self.rollbacks.pop(name, None)
            if found:
                self._report_rollback(found)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _report(self, watch: Watch, loss: Loss, line: int, taken_by: str | None, written: bool) -> None:
        entry, group, index, note = watch.entry, watch.group, watch.table_index, watch.note
        mask = _mask(entry.request, group)
        name = WRITE_OWNED if written else READ_RESIDENT
        if loss is ABSENT and not written and note and mask.may_free_index(index, note.computed):
            name = ROLLBACK_RESIDENT  # nothing needed the entry at the count on which it was released: a rollback made it needed
        cause = f"{loss._value_}[{note.cause if note else 'never released'}]"
        span = mask, entry.start, entry.tokens, self._lookahead
        facts = LossFacts(
            name,
            self._findings.contract,
            line,
            cause,
            loss,
            taken_by,
            written,
            entry.step,
            entry.request.name,
            group,
            index,
            watch.block,
            note,
            span,
        )
        self._findings.found(name, cause, facts.violation)

    def _report_rollback(self, found: _Rollback) -> None:
        for group, index, note in found.missing:
            needed = _mask(found.request, group).needed_next(found.computed, index)
            after = f"after {found.rejected} tokens were taken back, the next step of request {found.request.name}"
            where = f"starts at {found.computed} and reads {tokens_text(needed)} through index {index} of its table in group {group}"
            gone = f"{note.request} released it at line {note.line} ({note.cause})" if note else "nothing was ever kept there"
            causes = [note.cause if note else "never released", *([found.because] if found.because else [])]
            self._findings.add(
                Violation(
                    property=ROLLBACK_RESIDENT,
                    contract=self._findings.contract,
                    line=found.line,
                    cause=f"released_before_rollback[{', '.join(causes)}]",
                    detail=f"{after} {where}, but {gone}",
                    request=found.request.name,
                    group=group,
                    index=index,
                    needed=needed,
                    freed_by=note.request if note else None,
                    freed_at_line=note.line if note else None,
                    release_cause=note.cause if note else None,
                )
            )


def _mask(request: Request, group: int) -> Mask:
    """The mask of a group of which something is known: only such groups are watched."""
    mask = request.masks[group]
    assert mask is not None
    return mask


def _release_text(note: Note | None) -> str:
    return f"{note.request} released it at line {note.line} ({note.cause}) and " if note else ""


def _absent_text(block: int, note: Note | None) -> str:
    if note:
        return f"{note.request} had released it at line {note.line} ({note.cause}) before the step was scheduled"
    if block == NULL_BLOCK:
        return "nothing was there when the step was scheduled"
    return "the request did not hold that block there when the step was scheduled"
