"""All that a monitor holds while a trace runs: the checks and the state that they share, with lookups that reject bad input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from settled.model.events import After, CacheEntry, Config, Job
from settled.model.kinds import Kind
from settled.model.monitor.bounds import Bounds
from settled.model.monitor.counts import Counts
from settled.model.monitor.findings import Findings
from settled.model.monitor.groups import GroupMasks
from settled.model.monitor.ledger import Ledger
from settled.model.monitor.residency import Residency
from settled.model.monitor.slots import AlignedWithDrafts
from settled.model.monitor.state import Entry, Request, Table


class BadEventError(ValueError):
    """An event that names something the trace does not know, or out of range; says what was expected. `hint`: how to mend it, if known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(slots=True)
class StepRecord:
    """An unprocessed step. `order` counts schedules."""

    step: int
    order: int
    entries: list[Entry]


@dataclass(slots=True)
class Transfer:
    """A transfer under way: handles left, those that are over by name, and the order of the last step that it waits for (-1: none).

    `within`: the step of a synchronous load that is still to come, if a step in flight is safe only because it comes.
    """

    is_load: bool
    handles: int
    waits_for: int
    over: set[int | str] = field(default_factory=set)
    within: int | None = None


class Live:
    """The state of one monitored engine. Everything in it goes when what it speaks of is over."""

    def __init__(self, config: Config, findings: Findings, custom: Mapping[str, Kind]) -> None:
        self.config = config
        self.num_blocks = config.num_blocks
        self.num_groups = len(config.groups)
        self.findings = findings
        self.group_masks = GroupMasks(config.groups, custom)
        self.modelled = self.group_masks.modelled
        self.modelled_count = sum(self.modelled)
        self.unmodelled = [(group, spec.kind) for group, spec in enumerate(config.groups) if not self.modelled[group]]
        # Of an engine that records no moves, those of speculative blocks are inferred.
        fixed = self.group_masks.of(None)
        self.moves_group = [isinstance(mask, AlignedWithDrafts) and "copies" not in config.records for mask in fixed]
        self.ledger = Ledger(config.num_blocks, findings, knows_cache="content" in config.records)
        self.residency = Residency(config.num_lookahead_tokens, self.ledger, findings)
        self.counts = Counts(findings)
        self.bounds = Bounds(self.modelled, [spec.cap for spec in config.groups], findings)
        self.requests: dict[str, Request] = {}
        self.steps: dict[int, StepRecord] = {}
        self.transfers: dict[Job, Transfer] = {}
        self.transfers_over: dict[Job, int] = {}  # → order of the step that each waited for, until that is processed
        self.loads_astray = 0  # loads that were over before the step within which they were to run
        self.waits: dict[int, int] = {}  # block → order of the last step that its allocation waits for
        self.next_order = 0

    # ---- lookups -----------------------------------------------------------------------------------------------------

    def request(self, name: str) -> Request:
        """A known request."""
        found = self.requests.get(name)
        if found is None:
            raise BadEventError(f"unknown request {name!r}: expected one that was added and is not over")
        return found

    def active_request(self, name: str) -> Request:
        """A known request that has not finished."""
        found = self.request(name)
        if found.finished:
            raise BadEventError(f"request {name!r} is finished: expected nothing but releases and the outputs of its steps")
        return found

    def new_request(self, name: str, prompt_tokens: int | None) -> Request:
        """A request enters, with a prompt of so many tokens if that is known.

        Names are unique in a trace, but only those alive are kept: all would be memory without bound.
        """
        if name in self.requests:
            raise BadEventError(f"request {name!r} was added before: expected a name that is unique in the trace")
        masks = self.group_masks.of(prompt_tokens)
        tables = [Table(mask.kept if mask else 0) for mask in masks]
        known = [(group, mask, tables[group]) for group, mask in enumerate(masks) if mask is not None]
        if len(known) < self.modelled_count:
            self.residency.undecidable("a mask depends on the prompt of a request that is not known")
        bounded = [(group, mask, table) for group, mask, table in known if mask.prunes and group in self.bounds.checked]
        self.requests[name] = request = Request(name, tables, masks, known, bounded)
        return request

    def forget_if_gone(self, request: Request) -> None:
        """Drops a request of which nothing is left."""
        if request.is_gone:
            self.requests.pop(request.name, None)

    def check_blocks(self, blocks: Sequence[int]) -> None:
        """Raises BadEventError unless every id is one of the pool's."""
        end = self.num_blocks
        for block in blocks:
            if not 0 <= block < end:
                raise BadEventError(f"block {block} is out of range: expected 0 to {end - 1}")

    def check_group(self, group: int) -> None:
        """Raises BadEventError unless the group is one of the config's."""
        if not 0 <= group < self.num_groups:
            raise BadEventError(f"group {group} is out of range: expected 0 to {self.num_groups - 1}")

    def check_per_group(self, name: str, lists: Sequence[Sequence[int]]) -> None:
        """Raises BadEventError unless there is one list a group, of ids in range."""
        if len(lists) != len(self.modelled):
            raise BadEventError(f"{name} has {len(lists)} lists: expected one a group, {len(self.modelled)}")
        for blocks in lists:
            self.check_blocks(blocks)

    def check_entries(self, entries: Sequence[CacheEntry]) -> None:
        """Raises BadEventError unless the entries of the prefix cache name blocks and groups in range."""
        self.check_blocks([entry.block for entry in entries])
        for entry in entries:
            if entry.group is not None:
                self.check_group(entry.group)

    def check_after(self, after: Iterable[After] | None) -> None:
        """Raises BadEventError unless each dependency is one step or one job."""
        for dependency in after or ():
            if (dependency.step is None) == (dependency.job is None):
                raise BadEventError(f"`after` names {dependency.step} as step, {dependency.job!r} as job: expected one of the two")

    # ---- device order ------------------------------------------------------------------------------------------------

    def waits_for(self, after: Iterable[After] | None) -> int:
        """The order of the last unprocessed step that work waits for, through transfers too, finished ones included; -1 if for none."""
        self.check_after(after)
        latest = -1
        for dependency in after or ():
            if dependency.step is not None and dependency.step in self.steps:
                latest = max(latest, self.steps[dependency.step].order)
            if dependency.job is not None and dependency.job in self.transfers:
                latest = max(latest, self.transfers[dependency.job].waits_for)
            elif dependency.job is not None:
                latest = max(latest, self.transfers_over.get(dependency.job, -1))
        return latest

    def step_processed(self, order: int) -> None:
        """What waited for a step of that order or before it no longer needs to be known."""
        if self.transfers_over:
            self.transfers_over = {job: waited for job, waited in self.transfers_over.items() if waited > order}
