"""The worker beside the scheduler: its table rows, dummy runs over them, and the ways in which it gets them wrong.

The reference engine has no worker of its own: its trace says what the scheduler told. This file turns that trace into what the worker
made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from settled.model.events import (
    Add,
    Config,
    Event,
    Finish,
    PerGroup,
    Preempt,
    Process,
    ProcessedRequest,
    Schedule,
    ScheduledRequest,
)
from settled.model.specs import KVCacheSpec, MambaSpec
from settled.proofs.corpus.rows import Choice, DummyRun, Rows, StateColumn

FIRST_DUMMY_STEP = 1_000_000


def as_the_worker_saw_it(events: Iterable[Event], choice: Choice, dummy_runs: Sequence[DummyRun] = ()) -> list[Event]:
    """The same trace with the rows and states that the worker used, and the dummy runs that it made.

    Raises ValueError for a dummy run whose place does not come.
    """
    worker = _Worker(choice, dummy_runs)
    seen = [told for event in events for told in worker.see(event)]
    if worker.pending:
        raise ValueError(f"dummy run over the row of {worker.pending[0].row_of!r}: the trace does not come to where it belongs")
    return seen


class _Worker:
    """Rows by request, per group; `stashed` are the ids by which preempted requests grew last."""

    def __init__(self, choice: Choice, dummy_runs: Sequence[DummyRun]) -> None:
        self.rows, self.state_column = choice.rows, choice.state_column
        self.groups: tuple[KVCacheSpec, ...] = ()
        self.pending = list(dummy_runs)
        self.next_step = FIRST_DUMMY_STEP
        self.row_of: dict[str, PerGroup] = {}
        self.grew_by: dict[str, PerGroup] = {}
        self.stashed: dict[str, PerGroup] = {}

    def see(self, event: Event) -> Iterator[Event]:
        """What becomes of one event of the scheduler, and what follows it."""
        if isinstance(event, Config):
            self.groups = event.groups
        elif isinstance(event, Schedule):
            event = replace(event, requests=tuple(map(self._place, event.requests)))
        elif isinstance(event, Preempt) and self.rows is Rows.STASHED and event.request in self.grew_by:
            self.stashed[event.request] = self.grew_by.pop(event.request)
        yield event
        if isinstance(event, Process):
            for run in [run for run in self.pending if run.after_step == event.step]:
                self.pending.remove(run)
                yield from self._dummy_run(run)

    def _place(self, entry: ScheduledRequest) -> ScheduledRequest:
        """The entry as the worker takes it, and its row from then on."""
        name = entry.request
        if self.state_column is StateColumn.NEXT and entry.reads is not None:
            entry = replace(entry, reads=tuple(map(partial(_next_column, entry), self.groups, entry.reads)))
        if entry.resumed and self.rows is Rows.APPENDED:
            entry = replace(entry, resumed=False)
        if not entry.resumed and name in self.row_of and name in self.stashed:
            entry = replace(entry, new_blocks=_joined(self.stashed.pop(name), entry.new_blocks))
        is_new = entry.resumed or name not in self.row_of
        self.row_of[name] = entry.new_blocks if is_new else _joined(self.row_of[name], entry.new_blocks)
        if any(entry.new_blocks):
            self.grew_by[name] = entry.new_blocks
        return entry

    def _dummy_run(self, run: DummyRun) -> Iterator[Event]:
        """A step of a request that holds nothing, through a row that another one left; without a row left, an empty step."""
        step, self.next_step = self.next_step, self.next_step + 1
        row = self.row_of.get(run.row_of)
        if self.rows is not Rows.KEPT or row is None:
            yield Schedule(step=step, requests=())
            yield Process(step=step, requests=())
            return
        name = f"dummy run over the row of {run.row_of}"
        yield Add(request=name, prompt_tokens=run.start + run.tokens)
        entry = ScheduledRequest(request=name, start=run.start, tokens=run.tokens, drafts=0, new_blocks=row, resumed=False)
        yield Schedule(step=step, requests=(entry,))
        yield Process(step=step, requests=(ProcessedRequest(request=name, sampled=0, rejected=0),))
        yield Finish(request=name, reason="abort")


def _joined(row: PerGroup, new_blocks: PerGroup) -> PerGroup:
    return tuple(former + new for former, new in zip(row, new_blocks, strict=True))


def _next_column(entry: ScheduledRequest, group: KVCacheSpec, reads: tuple[int, ...]) -> tuple[int, ...]:
    """The entry of the token at the start, in place of the one before it; other kinds read by their mask."""
    is_state = isinstance(group, MambaSpec) and group.mode == "align" and entry.start > 0
    return (entry.start // group.block_size,) if is_state else reads
