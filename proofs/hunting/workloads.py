"""Seeded random workloads, biased to where something changes: one token around a block, a window, a batch; pools that just suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from random import Random
from typing import NamedTuple, TypeVar

from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, RSWASpec, SlidingWindowSpec
from settled.proofs.hunting.mixes import (
    CHUNK,
    CONSUMER,
    FULL,
    MAMBA_ALIGN,
    MAMBA_NONE,
    MIXES,
    NO_CONNECTOR,
    OFFLOADING,
    PRODUCER,
    RSWA,
    WINDOW,
    Kinds,
    Mix,
    Settings,
)
from settled.reference.decisions import boundary_lengths
from settled.reference.engines.operations import Abort, Add, Operation, Process, Report, Schedule, Workload
from settled.reference.engines.protocol import Ending, EngineFactory, Offer
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, KVRole, SetupError

WORKLOADS_A_SETUP = 16  # that differ in their operations alone: engines take long to build from a new configuration
REDRAWS_MAX = 200  # setups refused one after the other before a hunt gives up
_REQUESTS_MAX = 5
_ROUNDS_MAX = 10
_METHOD = "speculative_method"
_EXTRA_RETAINED_BY: Settings = ((_METHOD, "mtp"),)  # whose windows keep one token a draft but the first
_FAMILIES = 3
_RECOMPUTES = (("kv_load_failure_policy", "recompute"),)
_HOST_BYTES = (1 << 14, 1 << 16, 1 << 18)  # few blocks, so that they are evicted; or all of them
_ROLES = {PRODUCER: KVRole.PRODUCER, CONSUMER: KVRole.CONSUMER}

_Option = TypeVar("_Option")


class Drawn(NamedTuple):
    """A workload; `number` counts those of a mix and seed. `refused`: why setups were refused before it, if it is the first of its own."""

    number: int
    workload: Workload
    refused: tuple[str, ...] = ()


class MixError(RuntimeError):
    """The engine accepts no setup of a mix."""


def workloads(mix_name: str, seed: int, factory: EngineFactory, *, first: int = 0) -> Iterator[Drawn]:
    """All workloads from number `first` on, without end. Raises KeyError for an unknown mix, MixError."""
    mix = MIXES[mix_name]
    for family in count(first // WORKLOADS_A_SETUP):
        setup, refused = _accepted_setup(mix, f"{mix_name}/{seed}/{family}", factory)
        for number in range(max(first, family * WORKLOADS_A_SETUP), (family + 1) * WORKLOADS_A_SETUP):
            rng = Random(f"{mix_name}/{seed}/{family}/{number}")
            yield Drawn(number, Workload(setup, tuple(_operations(rng, mix, setup))), refused)
            refused = ()


# ---- setups ----------------------------------------------------------------------------------------------------------


def _accepted_setup(mix: Mix, name: str, factory: EngineFactory) -> tuple[EngineSetup, tuple[str, ...]]:
    """The first that the engine accepts; what it said of the others."""
    refused: list[str] = []
    for attempt in range(REDRAWS_MAX):
        rng = Random(f"{name}/setup/{attempt}")
        setup = draw_setup(rng, mix)
        try:
            sized = replace(setup, num_blocks=factory.min_num_blocks(setup) + _chosen(rng, mix.spare_blocks))
        except SetupError as error:
            refused.append(str(error))
            continue
        try:
            factory.create(sized, None).end()
        except SetupError as error:
            refused.append(str(error))
            continue
        except Exception:  # the run of the first workload tells whose fault it is
            pass
        return sized, tuple(refused)
    raise MixError(f"{factory.name} refused {REDRAWS_MAX} setups one after the other, the last because: {refused[-1]}")


def draw_setup(rng: Random, mix: Mix) -> EngineSetup:
    """A setup whose pool still has to be sized (`num_blocks` is 2)."""
    kinds = _chosen(rng, mix.groups)
    drafts = _chosen(rng, mix.drafts)
    block_size = _chosen(rng, mix.block_sizes)
    pipeline = _chosen(rng, mix.pipelines)
    max_model_len = block_size * rng.choice((4, 6, 8, 10)) + rng.choice((0, 0, -1, 1))
    max_num_seqs = rng.choice((1, 2, 3, 4, 8))
    batch = rng.choice((block_size, 2 * block_size, 4 * block_size, max_model_len)) + rng.choice((0, 0, -1, 1))
    retains = drafts > 1 and WINDOW in kinds and CHUNK not in kinds and _happens(rng, mix.percent_extra_retained)
    sizes = _Sizes(block_size, drafts, max_model_len, drafts - 1 if retains else 0)
    groups = tuple([_GROUPS[kind](rng, sizes) for kind in kinds])
    cached = _is_cached(rng, kinds, mix)
    return EngineSetup(
        groups=groups,
        num_blocks=2,
        max_num_batched_tokens=max(batch, max_num_seqs * (1 + drafts)),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        async_scheduling=pipeline.async_scheduling,
        pipeline_parallel_size=pipeline.pipeline_parallel_size,
        num_speculative_tokens=drafts,
        enable_prefix_caching=cached,
        hash_block_size=_hash_block_size(rng, mix, kinds, block_size) if cached else None,
        connector=_connector(rng, mix),
        extra=(_EXTRA_RETAINED_BY if retains else _method(rng, mix, kinds, drafts)) + _chosen(rng, mix.scheduling),
    )


def _method(rng: Random, mix: Mix, kinds: Kinds, drafts: int) -> Settings:
    """Chunks are no groups of their own beside eagle."""
    method = _chosen(rng, mix.methods)
    return ((_METHOD, method),) if method and drafts and not (method == "eagle" and CHUNK in kinds) else ()


def _hash_block_size(rng: Random, mix: Mix, kinds: Kinds, block_size: int) -> int | None:
    """A half or a quarter of a block. With one group, hits end with whole blocks and the size is not for the user to set."""
    return block_size // rng.choice((2, 4)) if len(kinds) > 1 and _happens(rng, mix.percent_hash_block) else None


class _Sizes(NamedTuple):
    block_size: int
    drafts: int
    max_model_len: int
    extra_retained: int


def _window(rng: Random, sizes: _Sizes) -> KVCacheSpec:
    """One token around a multiple of the block size."""
    window = max(1, sizes.block_size * rng.randint(1, 4) + rng.choice((-1, 0, 1)))
    return SlidingWindowSpec(block_size=sizes.block_size, window=window, extra_retained=sizes.extra_retained)


def _chunk(rng: Random, sizes: _Sizes) -> KVCacheSpec:
    """Whole blocks, or half a block more."""
    return ChunkedLocalAttentionSpec(
        block_size=sizes.block_size, chunk=sizes.block_size * rng.randint(1, 4) + rng.choice((0, 0, sizes.block_size // 2))
    )


def _full(_rng: Random, sizes: _Sizes) -> KVCacheSpec:
    return FullAttentionSpec(block_size=sizes.block_size)


def _rswa(rng: Random, sizes: _Sizes) -> KVCacheSpec:
    """One token around a multiple of the block size."""
    return RSWASpec(block_size=sizes.block_size, window=max(1, sizes.block_size * rng.randint(1, 2) + rng.choice((-1, 0, 1))))


def _mamba_none(_rng: Random, sizes: _Sizes) -> KVCacheSpec:
    """One block holds the state of a whole request."""
    return MambaSpec(block_size=sizes.max_model_len, mode="none", num_speculative_blocks=sizes.drafts)


def _mamba_align(_rng: Random, sizes: _Sizes) -> KVCacheSpec:
    return MambaSpec(block_size=sizes.block_size, mode="align", num_speculative_blocks=sizes.drafts)


_GROUPS: Mapping[str, Callable[[Random, _Sizes], KVCacheSpec]] = {
    WINDOW: _window,
    CHUNK: _chunk,
    FULL: _full,
    RSWA: _rswa,
    MAMBA_NONE: _mamba_none,
    MAMBA_ALIGN: _mamba_align,
}


def _is_cached(rng: Random, kinds: Kinds, mix: Mix) -> bool:
    """Mamba `align` is there for the prefix cache; a state that is overwritten in place cannot be in it."""
    if MAMBA_NONE in kinds:
        return False
    return MAMBA_ALIGN in kinds or _happens(rng, mix.percent_prefix_caching)


def _connector(rng: Random, mix: Mix) -> ConnectorSetup | None:
    name = _chosen(rng, mix.connectors)
    recomputes = _happens(rng, mix.percent_recompute)
    if name == NO_CONNECTOR:
        return None
    if name in OFFLOADING:
        return ConnectorSetup(name=name, extra=(("cpu_bytes_to_use", rng.choice(_HOST_BYTES)),))
    return ConnectorSetup(role=_ROLES.get(name, KVRole.BOTH), extra=_RECOMPUTES if recomputes else ())


# ---- operations ------------------------------------------------------------------------------------------------------


class _Course(NamedTuple):
    """What a workload's requests have in common. `related`: prompts of one family, at least a block long, so that one hits what another
    has cached. `crowded`: several at once that fill the pool together, so that their outputs push one another out. `lengths`: the setup's
    boundaries, in tokens.
    """

    related: bool
    crowded: bool
    lengths: tuple[int, ...]


def _operations(rng: Random, mix: Mix, setup: EngineSetup) -> Iterator[Operation]:
    """Rounds that add, fill the pipeline and process, in the proportions that keep it full, empty, or neither."""
    related = setup.enable_prefix_caching and _happens(rng, mix.percent_related)
    crowded = setup.max_num_seqs > 1 and _happens(rng, mix.percent_crowded)
    course = _Course(related, crowded, boundary_lengths(setup))
    schedules_first = rng.choice((1, 2, 3))
    percent_abort = mix.percent_abort_consumer if setup.kv_consumer else mix.percent_abort
    added = 0
    for _ in range(rng.randint(3, _ROUNDS_MAX)):
        if added < _REQUESTS_MAX and (added == 0 or rng.random() < 0.4):
            for _ in range(rng.choice((2, 3)) if course.crowded and not added else rng.choice((1, 1, 2))):
                yield _add(rng, mix, setup, course, f"r{added}")
                added += 1
        for _ in range(rng.choice((schedules_first, schedules_first, 1))):
            yield Schedule()
        if _happens(rng, percent_abort):
            # The latest is the one that waits, or is pushed out.
            yield Abort(f"r{rng.choice((added - 1, rng.randrange(added)))}")
        if setup.connector is not None and rng.random() < 0.5:
            yield _report(rng, mix)
        if rng.random() < 0.9:
            yield _process(rng, mix, setup)


def _add(rng: Random, mix: Mix, setup: EngineSetup, course: _Course, request_id: str) -> Add:
    lengths = course.lengths
    block_size = min(spec.block_size for spec in setup.groups)
    if course.related:
        lengths = tuple([length for length in lengths if length > block_size]) or lengths
    prompt = _share_of_pool(rng, setup, block_size) if course.crowded else rng.choice(lengths)
    longest = max(1, setup.max_model_len - prompt)
    shared = 0
    if _happens(rng, 90 if course.related else mix.percent_shared):
        shared = rng.choice((prompt, prompt, prompt // 2, rng.choice(lengths)))
    return Add(
        request_id,
        prompt_tokens=prompt,
        max_tokens=min(longest, rng.choice((block_size // 2 + 1, block_size + 1) if course.crowded else (1, 2, 3, 5, 8, 16))),
        family=rng.randrange(1 if course.related else _FAMILIES) if shared else 0,
        shared_tokens=min(shared, prompt),
        offer=_offer(rng, mix, setup, course, prompt),
        is_stored=setup.connector is not None and _happens(rng, mix.percent_stored),
    )


def _share_of_pool(rng: Random, setup: EngineSetup, block_size: int) -> int:
    """Prompt tokens, in whole blocks or one fewer, of which two or three fill the pool. At most what leaves room for one more."""
    blocks = (setup.num_blocks - 1) // len(setup.groups)
    return max(1, min(blocks // rng.choice((2, 2, 3)) * block_size - rng.choice((0, 0, 1)), setup.max_model_len - 1))


def _offer(rng: Random, mix: Mix, setup: EngineSetup, course: _Course, prompt: int) -> Offer | None:
    """A part of the prompt that ends around a block, or all of it."""
    if not setup.kv_consumer or not _happens(rng, mix.percent_offered):
        return None
    is_whole = _happens(rng, mix.percent_whole_load)
    if prompt == 1 and not is_whole:
        return None
    return Offer(
        prompt if is_whole else min(prompt - 1, rng.choice(course.lengths)),
        is_async=not _happens(rng, mix.percent_sync_load),
        workers=rng.choice((1, 1, 2)),
        ending=_ending(rng, mix.percent_failed_load),
    )


def _ending(rng: Random, percent_failed: int) -> Ending:
    return rng.choice((Ending.FIRST_FAILED, Ending.ALL_FAILED)) if _happens(rng, percent_failed) else Ending.GOOD


def _process(rng: Random, mix: Mix, setup: EngineSetup) -> Process:
    drafts = setup.num_speculative_tokens
    rejected = tuple([rng.choice((0, drafts, rng.randint(0, drafts))) for _ in range(rng.choice((1, 1, 2, 3)))]) if drafts else (0,)
    return Process(rejected, (rng.randrange(3),) if _happens(rng, mix.percent_stop) else ())


def _report(rng: Random, mix: Mix) -> Report:
    return Report(rng.randrange(3), _ending(rng, mix.percent_failed_report), again=_happens(rng, mix.percent_report_again))


def _chosen(rng: Random, weights: Mapping[_Option, int]) -> _Option:
    return rng.choices(list(weights), list(weights.values()))[0]


def _happens(rng: Random, percent: int) -> bool:
    return rng.random() * 100 < percent
