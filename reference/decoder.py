"""Bytes decoded to a configuration and decisions: every byte string is a run that the engine accepts.

A generator asks for small numbers, of which 0 is the simplest; where they come from is another's job: from bytes here, from a
property-based testing library elsewhere. So both draw from one definition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from settled.model.disciplines import RIGHT, Discipline
from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.reference.admission import blocks_for_one_request
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.decisions import SORTS, Decision

_Value = TypeVar("_Value")

BYTE = 256


class Numbers(ABC):
    """A source of numbers that remembers what it gave: `taken` is the byte string that decodes to the same run."""

    def __init__(self) -> None:
        self.taken = bytearray()

    @abstractmethod
    def next(self, bound: int) -> int:
        """A number from 0 to `bound` - 1."""

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1; `bound` is at most 256. Where there is no choice, none is taken."""
        assert 1 <= bound <= BYTE
        if bound == 1:
            return 0
        number = self.next(bound)
        self.taken.append(number)
        return number

    def pick(self, options: Sequence[_Value]) -> _Value:
        """One of the options, the simplest first."""
        return options[self.below(len(options))]


class NumbersOfBytes(Numbers):
    """A byte a number; past the end all are 0."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.place = 0

    @property
    def is_at_end(self) -> bool:
        return self.place >= len(self.data)

    def next(self, bound: int) -> int:
        place = self.place
        self.place = place + 1
        return self.data[place] % bound if place < len(self.data) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSpace:
    """Which configurations are drawn. Lengths in tokens; `kinds` are names of `KINDS`, all of them if empty."""

    kinds: tuple[str, ...] = ()
    groups_max: int = 3
    block_sizes: tuple[int, ...] = (1, 2, 4, 8, 3, 5, 6)
    max_in_flight_steps: int = 4
    num_speculative_tokens: int = 4
    max_model_len: int = 72
    discipline: Discipline = RIGHT

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"kinds: {unknown[0]!r} is not one of {', '.join(KINDS)}")
        smallest = {
            "groups_max": 1,
            "max_in_flight_steps": 1,
            "num_speculative_tokens": 0,
            "max_model_len": MODEL_LEN_MIN,
        }
        for name, minimum in smallest.items():
            if not minimum <= getattr(self, name) < BYTE:
                raise ValueError(f"{name} must be {minimum} to {BYTE - 1}, not {getattr(self, name)}")
        if not self.block_sizes or min(self.block_sizes) < 1:
            raise ValueError(f"block_sizes must be at least one size of at least 1 token, not {self.block_sizes}")


class Case(NamedTuple):
    """A configuration and what is decided in it. `numbers` decodes to both."""

    config: EngineConfig
    decisions: tuple[Decision, ...]
    numbers: bytes


# ---- configurations --------------------------------------------------------------------------------------------------

MODEL_LEN_MIN = 8
_SPARE_BLOCKS = (0, 1, 2, 3, 8, 30)
_WATERMARKS = (0.0, 0.0, 0.05, 0.2)


class Sizes(NamedTuple):
    """What a group has to fit: tokens of a block, drafts a step, maximum length in tokens."""

    block_size: int
    drafts: int
    max_model_len: int


def _around_blocks(numbers: Numbers, sizes: Sizes) -> int:
    """A length one token around a multiple of the block size, in tokens."""
    return max(1, sizes.block_size * numbers.below(4) + numbers.pick((1, 0, -1, 2)))


def _sliding_window(numbers: Numbers, sizes: Sizes) -> KVCacheSpec:
    window = _around_blocks(numbers, sizes)
    return SlidingWindowSpec(block_size=sizes.block_size, window=window, extra_retained=numbers.pick((0, 0, 0, 1, 3)))


def _full(_numbers: Numbers, sizes: Sizes) -> KVCacheSpec:
    return FullAttentionSpec(block_size=sizes.block_size)


def _chunked_local(numbers: Numbers, sizes: Sizes) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(block_size=sizes.block_size, chunk=_around_blocks(numbers, sizes))


def _sink_window(numbers: Numbers, sizes: Sizes) -> KVCacheSpec:
    sink = numbers.below(2 * sizes.block_size + 1)
    return SinkWindowSpec(block_size=sizes.block_size, sink=sink, window=_around_blocks(numbers, sizes))


def _rswa(numbers: Numbers, sizes: Sizes) -> KVCacheSpec:
    return RSWASpec(block_size=sizes.block_size, window=_around_blocks(numbers, sizes))


def _mamba_none(numbers: Numbers, sizes: Sizes) -> KVCacheSpec:
    """One block holds the state of a whole request."""
    block_size = sizes.max_model_len + numbers.below(2)
    return MambaSpec(block_size=block_size, mode="none", num_speculative_blocks=sizes.drafts)


def _mamba_align(_numbers: Numbers, sizes: Sizes) -> KVCacheSpec:
    """A decode step of 1 + drafts tokens fits into a block."""
    block_size = sizes.block_size * (1 + sizes.drafts // sizes.block_size)
    return MambaSpec(block_size=block_size, mode="align", num_speculative_blocks=sizes.drafts)


# A reader a kind, the simplest first. A new kind is one more entry.
KINDS: dict[str, Callable[[Numbers, Sizes], KVCacheSpec]] = {
    "sliding_window": _sliding_window,
    "full": _full,
    "chunked_local": _chunked_local,
    "sink_window": _sink_window,
    "rswa": _rswa,
    "mamba none": _mamba_none,
    "mamba align": _mamba_align,
}
# What is drawn where no kinds are named: a kind that stands here twice is drawn twice as often.
_USUAL_KINDS = ("sliding_window", "full", "sliding_window", *KINDS)


def read_config(numbers: Numbers, space: ConfigSpace) -> EngineConfig:
    """A configuration that the engine accepts: the pool holds what start-up sizing asks for, or little more."""
    drafts = numbers.below(space.num_speculative_tokens + 1)
    max_model_len = MODEL_LEN_MIN + numbers.below(space.max_model_len - MODEL_LEN_MIN + 1)
    groups = tuple([_read_group(numbers, space, drafts, max_model_len) for _ in range(1 + numbers.below(space.groups_max))])
    chunked = numbers.pick((True, True, True, True, False))
    config = EngineConfig(
        groups=groups,
        num_blocks=2,
        max_in_flight_steps=1 + numbers.below(space.max_in_flight_steps),
        max_num_batched_tokens=1 + drafts + numbers.below(24) if chunked else max_model_len,
        max_num_seqs=1 + numbers.below(6),
        num_speculative_tokens=drafts,
        num_lookahead_tokens=numbers.pick((0, drafts, drafts + 1)),
        max_model_len=max_model_len,
        enable_prefix_caching=bool(numbers.below(2)) and all(map(_is_cacheable, groups)),
        zero_fresh_blocks=numbers.pick((None, True)),
        watermark=numbers.pick(_WATERMARKS),
        kv_consumer=bool(numbers.below(2)),
        connector=bool(numbers.below(2)),
        transfers_wait=bool(numbers.below(2)),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=numbers.pick((0, 0, 0, 1, 4)),
        stale_output_mode=numbers.pick(tuple(StaleOutputMode)),
        discipline=space.discipline,
    )
    if config.cached_groups:
        finest = config.tokens_per_hash
        config = replace(config, hash_block_size=numbers.pick((None, *[size for size in range(1, finest + 1) if finest % size == 0])))
    return replace(config, num_blocks=1 + blocks_for_one_request(config) + numbers.pick(_SPARE_BLOCKS))


def _read_group(numbers: Numbers, space: ConfigSpace, drafts: int, max_model_len: int) -> KVCacheSpec:
    kind = numbers.pick(space.kinds or _USUAL_KINDS)
    return KINDS[kind](numbers, Sizes(numbers.pick(space.block_sizes), drafts, max_model_len))


def _is_cacheable(spec: KVCacheSpec) -> bool:
    """A state that is overwritten in place cannot be."""
    return not (isinstance(spec, MambaSpec) and spec.mode == "none")


# ---- decisions -------------------------------------------------------------------------------------------------------

# A code a decision; what is more frequent has several.
CODES: tuple[str, ...] = tuple(name for name, sort in SORTS.items() for _ in range(sort.weight))


def read_decision(numbers: Numbers) -> Decision:
    """One decision: its code, then a number for each argument of its sort."""
    name = CODES[numbers.below(len(CODES))]
    return Decision(name, tuple([numbers.pick(argument.values) for argument in SORTS[name].arguments]))


EVERYTHING = ConfigSpace()


def decode(data: bytes, space: ConfigSpace = EVERYTHING) -> Case:
    """The case of a byte string; there is one for every byte string."""
    numbers = NumbersOfBytes(data)
    config = read_config(numbers, space)
    decisions = []
    while not numbers.is_at_end:
        decisions.append(read_decision(numbers))
    return Case(config, tuple(decisions), bytes(numbers.taken))


def encode(decision: Decision) -> bytes:
    """The numbers that a decision is decoded from. Raises ValueError for what no numbers decode to."""
    code = CODES.index(decision.name)
    values = zip(SORTS[decision.name].arguments, decision.values, strict=True)
    return bytes([code, *(argument.values.index(value) for argument, value in values)])


def with_decisions(case: Case, decisions: Sequence[Decision]) -> Case:
    """The same configuration with other decisions."""
    of_config = len(case.numbers) - sum(1 + len(decision.values) for decision in case.decisions)
    return Case(case.config, tuple(decisions), case.numbers[:of_config] + b"".join(map(encode, decisions)))
