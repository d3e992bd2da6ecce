"""A found workload made small: fewer scheduled steps, then fewer operations, then a simpler setup and smaller numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any, Protocol

from settled.model.specs import FullAttentionSpec, KVCacheSpec
from settled.proofs.reducing import Reducer, pairs_left_out
from settled.reference.engines.operations import Abort, Add, Operation, Process, Report, Schedule, Workload
from settled.reference.engines.protocol import Ending
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, SetupError

RUNS_MAX = 600
_LENGTHS = ("block_size", "window", "chunk", "extra_retained", "num_speculative_blocks")  # of groups, in tokens or blocks
_LEAST = {"block_size": 1, "window": 1, "chunk": 1}
_SIZES = ("num_speculative_tokens", "pipeline_parallel_size", "max_num_seqs", "max_model_len", "num_blocks")
_WEIGHTS = {"num_speculative_tokens": 50, "pipeline_parallel_size": 200, "max_num_seqs": 5}
_STRETCHES_MAX = 20  # operations of which a stretch is left out together with a change of sizes
_LONGER_TOKENS = (1, 2, 4, 8)
_DIVISORS = (8, 4, 2)
_A_TOKEN_NOT_BATCHED = 4
_A_GROUP, _A_CONNECTOR, _A_CACHE, _ASYNC, _A_SETTING = 2000, 500, 300, 100, 100


class Shown(Protocol):
    """A run that shows what is looked for."""

    @property
    def steps(self) -> int: ...

    @property
    def done(self) -> Sequence[Operation]: ...


class Shrinker(Reducer[Workload]):
    """Looks for the smallest workload that shows what `workload` shows, from that one on.

    `show`: what a workload's run schedules and does until it shows it, None if it does not within so many scheduled steps.
    `min_num_blocks`: the smallest pool of a setup. `is_spent`: asked before every run; with True, it ends.
    """

    def __init__(
        self,
        workload: Workload,
        shown: Shown,
        show: Callable[[Workload, int], Shown | None],
        min_num_blocks: Callable[[EngineSetup], int],
        *,
        runs_max: int = RUNS_MAX,
        is_spent: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(workload, self._is_smaller, runs_max=runs_max)
        self.shown = shown
        self.show = show
        self.min_num_blocks = min_num_blocks
        self.is_spent = is_spent

    def size_of(self, example: Workload) -> tuple[int, int]:
        return size_of(example)

    def may_be_smaller(self, candidate: Workload) -> bool:
        """Only a run tells how many steps it takes."""
        return True

    def is_enough(self) -> bool:
        return super().is_enough() or self.is_spent()

    def _is_smaller(self, candidate: Workload) -> bool:
        shown = self.show(candidate, self.shown.steps)
        if shown is None or (shown.steps, size_of(candidate)) >= (self.shown.steps, size_of(self.best)):
            return False
        self.shown = shown
        return True

    def identity_of(self, example: Workload) -> Hashable:
        return example

    def reduce(self) -> None:
        """One sort of change after the other, each until it no longer helps, and all over again."""
        self.drop_stretches(lambda: len(self.best.operations), self._without)
        before = None
        while before != self.best:
            before = self.best
            sorts: tuple[Callable[[], Iterator[Workload]], ...] = (
                self._fewer_operations,
                self._shorter,
                self._fewer_groups,
                self._simpler_flags,
                self._larger_batches,
                self._prefills_in_one_step,
                self._longer_prompts,
                self._earlier_rejections,
                *[partial(self._smaller, name) for name in _SIZES],
                self._smallest_pools,
                self._simpler_groups,
                self._simpler_operations,
                self._fewer_pairs,
            )
            for changes in sorts:
                self.until_none_holds(changes)

    # ---- what is tried -----------------------------------------------------------------------------------------------

    def _without(self, first: int, last: int) -> Workload:
        operations = self.best.operations
        return replace(self.best, operations=operations[:first] + operations[last:])

    def _fewer_operations(self) -> Iterator[Workload]:
        for place in reversed(range(len(self.best.operations))):
            yield self._without(place, place + 1)

    def _fewer_pairs(self) -> Iterator[Workload]:
        """Last, when few are left: there are many pairs."""
        operations = self.best.operations
        for places in pairs_left_out(len(operations)):
            yield replace(self.best, operations=tuple([each for place, each in enumerate(operations) if place not in places]))

    def _longer_prompts(self) -> Iterator[Workload]:
        """What several decode steps lead up to, a longer prompt may have at once."""
        operations = self.best.operations
        for tokens in _LONGER_TOKENS:
            longer = tuple([_longer(each, tokens) for each in operations])
            yield replace(self.best, operations=longer)
            yield replace(self.best, operations=tuple([_longer(each, tokens, less_output=tokens) for each in operations]))
            if len(operations) <= _STRETCHES_MAX:
                for place in range(len(operations) - 1):
                    yield replace(self.best, operations=longer[:place] + longer[place + 2 :])

    def _earlier_rejections(self) -> Iterator[Workload]:
        """All drafts are rejected early, where the run has accepted them so far."""
        done, drafts = tuple(self.shown.done), self.best.setup.num_speculative_tokens
        for place, operation in enumerate(done):
            if drafts and isinstance(operation, Process):
                yield replace(self.best, operations=(*done[:place], Process((drafts,))))

    def _prefills_in_one_step(self) -> Iterator[Workload]:
        """The steps in between are left out together with what made them necessary."""
        setup, operations = self.best.setup, self.best.operations
        if len(operations) > _STRETCHES_MAX:
            return
        prompts = sum([each.prompt_tokens for each in operations if isinstance(each, Add)])
        steps = prompts // max(1, setup.max_num_batched_tokens - _room_for_drafts(setup))
        larger = list(self._batching(_whole_batch(setup)))[-1]
        for length in range(2 * steps, 0, -2):  # a step is two operations: scheduled and processed
            for place in range(len(operations) - length + 1):
                yield Workload(larger, operations[:place] + operations[place + length :])

    def _larger_batches(self) -> Iterator[Workload]:
        """A prefill in one step is simpler than one in several."""
        setup = self.best.setup
        for tokens in (_whole_batch(setup), 2 * setup.max_num_batched_tokens, setup.max_num_batched_tokens + 1):
            for larger in self._batching(tokens):
                yield replace(self.best, setup=larger)

    def _batching(self, tokens: int) -> Iterator[EngineSetup]:
        """Setups whose steps take so many tokens. More tokens in flight may need a larger pool."""
        setup = replace(self.best.setup, max_num_batched_tokens=tokens)
        yield setup
        with suppress(SetupError):
            yield replace(setup, num_blocks=max(setup.num_blocks, self.min_num_blocks(setup)))

    def _shorter(self) -> Iterator[Workload]:
        """Every length divided by the same number: blocks, windows, prompts, and what a step takes."""
        setup = self.best.setup
        for divisor in _DIVISORS:
            groups = tuple([_divided(spec, divisor) for spec in setup.groups])
            lengths = {name: max(2, getattr(setup, name) // divisor) for name in ("max_model_len", "max_num_batched_tokens")}
            operations = tuple([_add_divided(each, divisor) if isinstance(each, Add) else each for each in self.best.operations])
            yield Workload(replace(setup, groups=groups, hash_block_size=None, **lengths), operations)

    def _fewer_groups(self) -> Iterator[Workload]:
        groups = self.best.setup.groups
        for place in range(len(groups)):
            if len(groups) > 1:
                yield self._with_setup(groups=groups[:place] + groups[place + 1 :])

    def _simpler_flags(self) -> Iterator[Workload]:
        connector = self.best.setup.connector
        yield self._with_setup(connector=None)
        if connector is not None and connector.extra:
            yield self._with_setup(connector=replace(connector, extra=()))
        yield self._with_setup(enable_prefix_caching=False, hash_block_size=None)
        yield self._with_setup(hash_block_size=None)
        yield self._with_setup(async_scheduling=False)
        yield self._with_setup(extra=())

    def _smaller(self, name: str) -> Iterator[Workload]:
        for lower in _lower(getattr(self.best.setup, name), least=0 if name == "num_speculative_tokens" else 1):
            yield self._with_setup(**{name: lower})

    def _smallest_pools(self) -> Iterator[Workload]:
        with suppress(SetupError):
            yield self._with_setup(num_blocks=self.min_num_blocks(self.best.setup))

    def _simpler_groups(self) -> Iterator[Workload]:
        groups = self.best.setup.groups
        for place, spec in enumerate(groups):
            for simpler in _simpler_specs(spec):
                yield self._with_setup(groups=(*groups[:place], simpler, *groups[place + 1 :]))

    def _with_setup(self, **changes: Any) -> Workload:
        return replace(self.best, setup=replace(self.best.setup, **changes))

    def _simpler_operations(self) -> Iterator[Workload]:
        operations = self.best.operations
        for place, operation in enumerate(operations):
            for simpler in _simpler(operation, self.best.setup):
                yield replace(self.best, operations=(*operations[:place], simpler, *operations[place + 1 :]))


def _whole_batch(setup: EngineSetup) -> int:
    """Tokens: a step of so many takes any prompt whole."""
    return setup.max_model_len + _room_for_drafts(setup)


def _room_for_drafts(setup: EngineSetup) -> int:
    """Tokens that vLLM sets aside in a step, for the drafts of as many requests as may run."""
    return setup.max_num_seqs * setup.num_speculative_tokens


def _lower(number: int, *, least: int) -> Iterator[int]:
    """Smaller numbers, the smallest first."""
    for lower in sorted({least, number // 2, number - number // 4, number - 1}):
        if least <= lower < number:
            yield lower


def _divided(spec: KVCacheSpec, divisor: int) -> KVCacheSpec:
    lengths = ("block_size", "window", "chunk", "extra_retained")
    told: dict[str, Any] = {name: max(_LEAST.get(name, 0), getattr(spec, name) // divisor) for name in lengths if hasattr(spec, name)}
    return replace(spec, **told)


def _add_divided(add: Add, divisor: int) -> Add:
    offer = None if add.offer is None else replace(add.offer, tokens=max(1, add.offer.tokens // divisor))
    prompt = max(1, add.prompt_tokens // divisor)
    return replace(add, prompt_tokens=prompt, shared_tokens=min(prompt, add.shared_tokens // divisor), offer=offer)


def _simpler_specs(spec: KVCacheSpec) -> Iterator[KVCacheSpec]:
    if not isinstance(spec, FullAttentionSpec):
        yield FullAttentionSpec(block_size=spec.block_size)
    for name in _LENGTHS:
        if hasattr(spec, name):
            for lower in _lower(getattr(spec, name), least=_LEAST.get(name, 0)):
                yield replace(spec, **{name: lower})


def _longer(operation: Operation, tokens: int, *, less_output: int = 0) -> Operation:
    if not isinstance(operation, Add):
        return operation
    max_tokens = max(1, operation.max_tokens - less_output)
    return replace(operation, prompt_tokens=operation.prompt_tokens + tokens, max_tokens=max_tokens)


def _simpler(operation: Operation, setup: EngineSetup) -> Iterator[Operation]:
    match operation:
        case Add():
            yield from _simpler_adds(operation, setup)
        case Process():
            yield Process()
            yield replace(operation, stops=())
            yield replace(operation, rejected=operation.rejected[:1])
            for place, rejected in enumerate(operation.rejected):
                for lower in _lower(rejected, least=0):
                    yield replace(operation, rejected=(*operation.rejected[:place], lower, *operation.rejected[place + 1 :]))
        case Report():
            yield Report()
            yield replace(operation, ending=Ending.GOOD)
            yield replace(operation, again=False)
            for lower in _lower(operation.which, least=0):
                yield replace(operation, which=lower)


def _simpler_adds(add: Add, setup: EngineSetup) -> Iterator[Add]:
    yield Add(add.request_id, add.prompt_tokens, add.max_tokens)
    yield replace(add, offer=None)
    yield replace(add, is_stored=False)
    yield replace(add, family=0, shared_tokens=0)
    yield replace(add, family=0)
    for spec in setup.groups:  # a block less leaves everything where it is in its block
        if add.prompt_tokens > spec.block_size:
            yield replace(add, prompt_tokens=add.prompt_tokens - spec.block_size, shared_tokens=max(0, add.shared_tokens - spec.block_size))
    for name in ("prompt_tokens", "max_tokens", "shared_tokens"):
        for lower in _lower(getattr(add, name), least=0 if name == "shared_tokens" else 1):
            changes: dict[str, Any] = {name: lower}
            yield replace(add, **changes)
    if add.offer is not None:
        yield replace(add, offer=replace(add.offer, workers=1))
        yield replace(add, offer=replace(add.offer, ending=Ending.GOOD))
        for lower in _lower(add.offer.tokens, least=1):
            yield replace(add, offer=replace(add.offer, tokens=lower))


# ---- sizes -----------------------------------------------------------------------------------------------------------


def size_of(workload: Workload) -> tuple[int, int]:
    """What a smaller workload has less of: operations, then everything else, weighed."""
    return len(workload.operations), _size_of_setup(workload.setup) + sum(map(_size_of_operation, workload.operations))


def _size_of_setup(setup: EngineSetup) -> int:
    numbers: int = sum(_WEIGHTS.get(name, 1) * getattr(setup, name) for name in _SIZES)
    flags = _A_CACHE * setup.enable_prefix_caching + _ASYNC * setup.async_scheduling
    settings = _A_SETTING * (len(setup.extra) + (setup.hash_block_size is not None))
    not_batched = _A_TOKEN_NOT_BATCHED * max(0, setup.max_model_len - setup.max_num_batched_tokens)
    return numbers + not_batched + flags + settings + _size_of_connector(setup.connector) + sum(map(_size_of_spec, setup.groups))


def _size_of_connector(connector: ConnectorSetup | None) -> int:
    return 0 if connector is None else _A_CONNECTOR + _A_SETTING * len(connector.extra)


def _size_of_spec(spec: KVCacheSpec) -> int:
    """Full attention is the simplest kind."""
    numbers: list[int] = [getattr(spec, each.name) for each in fields(spec) if each.name in _LENGTHS]
    return _A_GROUP + sum(numbers) + (0 if isinstance(spec, FullAttentionSpec) else _A_SETTING)


def _size_of_operation(operation: Operation) -> int:
    match operation:
        case Add():
            offer = (
                0 if operation.offer is None else 50 + operation.offer.tokens + operation.offer.workers + (operation.offer.ending != "good")
            )
            told = operation.prompt_tokens + 2 * operation.max_tokens + operation.shared_tokens + operation.family
            return told + offer + 50 * operation.is_stored
        case Process():
            return 1 + sum(operation.rejected) + len(operation.rejected) + 5 * len(operation.stops)
        case Report():
            return 3 + operation.which + (operation.ending is not Ending.GOOD) + operation.again
        case Abort() | Schedule():
            return 1
