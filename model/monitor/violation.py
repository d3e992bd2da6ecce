"""A violation: where a trace breaks a property, with all that a reader needs to see why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from settled.model.properties import Contract, Property
from settled.model.trace_io import printable


class Loss(StrEnum):
    """How a step loses a block that it reads or writes."""

    ABSENT = "released_before_schedule"  # the table entry named no block of the request when the step was scheduled
    FREED = "freed"  # the block went back to the pool while the step was unprocessed
    REALLOCATED = "reallocated"  # ... and out again, to another holder
    LOADED_OVER = "loaded_over"  # a connector may write into it, on its own stream
    SHARED = "shared"  # others hold it too, and the bytes that the step writes are not what its hash stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One breach of a property.

    `line` is where it happened; `cause` is its class, by which breaches are counted, such as "reallocated[window]". `index` is a table
    index, `needed` the first and last token position read or written, both included. `freed_by` is the request that released the block,
    at `freed_at_line`, for `release_cause`; `taken_by` is what came after ("request B", "job 7"). `detail` says it in words.
    """

    property: Property
    contract: Contract
    line: int
    cause: str
    detail: str
    step: int | None = None
    request: str | None = None
    group: int | None = None
    index: int | None = None
    block: int | None = None
    needed: tuple[int, int] | None = None
    freed_by: str | None = None
    freed_at_line: int | None = None
    release_cause: str | None = None
    taken_by: str | None = None

    def sentence(self) -> str:
        """What happened, in one plain sentence. Names come from the trace, and a terminal obeys control characters: they are escaped."""
        return printable(f"line {self.line}: {self.detail}.")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys without a value are left out."""
        plain = {key: value for key, value in asdict(self).items() if value is not None}
        return {**plain, "sentence": self.sentence()}


def tokens_text(needed: tuple[int, int]) -> str:
    """A range of token positions, in words."""
    first, last = needed
    return f"token {first}" if first == last else f"tokens {first} to {last}"
