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
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
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


def _around_blocks(numbers: Numbers, block_size: int) -> int:
    """A length one token around a multiple of the block size, in tokens."""
    return max(1, block_size * numbers.below(4) + numbers.pick((1, 0, -1, 2)))


def _full(_numbers: Numbers, block_size: int) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size)


def _sliding_window(numbers: Numbers, block_size: int) -> KVCacheSpec:
    window = _around_blocks(numbers, block_size)
    return SlidingWindowSpec(block_size=block_size, window=window, extra_retained=numbers.pick((0, 0, 0, 1, 3)))


# A reader a kind, the simplest first; given twice, a kind is drawn twice as often.
KINDS: dict[str, Callable[[Numbers, int], KVCacheSpec]] = {
    "sliding_window": _sliding_window,
    "full": _full,
}


def read_config(numbers: Numbers, space: ConfigSpace) -> EngineConfig:
    """A configuration that the engine accepts: the pool holds what start-up sizing asks for, or little more."""
    kinds = space.kinds or tuple(KINDS)
    groups = tuple(KINDS[numbers.pick(kinds)](numbers, numbers.pick(space.block_sizes)) for _ in range(1 + numbers.below(space.groups_max)))
    drafts = numbers.below(space.num_speculative_tokens + 1)
    config = EngineConfig(
        groups=groups,
        num_blocks=2,
        max_in_flight_steps=1 + numbers.below(space.max_in_flight_steps),
        max_num_batched_tokens=1 + drafts + numbers.below(24),
        max_num_seqs=1 + numbers.below(6),
        num_speculative_tokens=drafts,
        num_lookahead_tokens=numbers.pick((0, drafts, drafts + 1)),
        max_model_len=MODEL_LEN_MIN + numbers.below(space.max_model_len - MODEL_LEN_MIN + 1),
        enable_prefix_caching=bool(numbers.below(2)),
        kv_consumer=bool(numbers.below(2)),
        connector=bool(numbers.below(2)),
        stale_output_mode=numbers.pick(tuple(StaleOutputMode)),
        discipline=space.discipline,
    )
    return replace(config, num_blocks=1 + blocks_for_one_request(config) + numbers.pick(_SPARE_BLOCKS))


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
