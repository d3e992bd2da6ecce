"""Every way in which a kernel is compiled: the one list that launches use and that is compiled ahead of time.

Pointers are aligned to 16 bytes, since only whole allocations are passed; no integer is specialised on. So each variant is one binary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from settled.reference.device.cuda import kernels
from settled.reference.device.cuda.device_log import PART_FIELDS, RANGE_FIELDS, ROW_FIELDS

TILE = 16
"""Tokens a tile. Small, so that short requests have several."""

_POINTERS = {
    "tags": "*i64",
    "new_tags": "*i64",
    "expected": "*i64",
    "token_tags": "*i64",
    "found_tags": "*i64",
    "factors": "*i64",
    "addends": "*i64",
    "digests": "*i64",
    "scratch": "*fp32",
}
_NUMBERS = ("keys", "values", "queries", "outputs")
_FLOATS = ("scale", "number")
_INTEGERS = ("begin", "end", "page", "empty_slot", "tag", "gate_row", "gate_tile", "gate_spins")


@dataclass(frozen=True, slots=True)
class Variant:
    """`constants`: the kernel's compile-time arguments. `numbers`: the type of keys and values, as Triton calls it.

    One stage: no load is moved ahead of the one before it, which a gate relies on.
    """

    kernel: Any
    constants: Mapping[str, int]
    numbers: str = "fp32"
    num_warps: int = 4
    num_stages: int = 1

    def launch(self, grid: tuple[int, ...], *arguments: object) -> None:
        """Enqueues it on torch's current stream. `arguments`: all but the constants, in the kernel's order."""
        self.kernel[grid](*arguments, **self.constants, **self.options())

    def options(self) -> dict[str, object]:
        """Of the compiler. Products and sums may be fused, as by default so far; releases of Triton differ in that default."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}

    def signature(self) -> dict[str, str]:
        """The type of each argument, as Triton calls it."""
        return {name: self._type(name) for name in self.kernel.arg_names}

    def is_aligned(self, name: str) -> bool:
        """Whether every launch passes a pointer to the beginning of an allocation."""
        return self._type(name).startswith("*") and name not in ("go", "arrived")

    def _type(self, name: str) -> str:
        if name in self.constants:
            return "constexpr"
        if name in _INTEGERS:
            return "i32"
        if name in _FLOATS:
            return "fp32"
        return f"*{self.numbers}" if name in _NUMBERS else _POINTERS.get(name, "*i32")


@dataclass(frozen=True, slots=True)
class Variants:
    """Those that a log's launches use, `gated` in place of `attention` for the launch that is held up."""

    write: Variant
    state_read: Variant
    state_write: Variant
    attention: Variant
    gated: Variant
    fill: Variant
    copy: Variant


def variants_for(head_dim: int) -> Variants:
    """Raises ValueError where the kernels cannot have that many numbers a key."""
    if head_dim < 1 or head_dim & (head_dim - 1):
        raise ValueError(f"kernels need a power of two as numbers a key, not {head_dim}")
    tiles = {"HEAD_DIM": head_dim, "TILE": TILE}
    return Variants(
        Variant(kernels.write_kernel, tiles),
        Variant(kernels.state_read_kernel, {"HEAD_DIM": head_dim, "PART_FIELDS": PART_FIELDS}, num_warps=1),
        Variant(kernels.state_write_kernel, tiles),
        attention_variant(head_dim),
        attention_variant(head_dim, is_gated=True),
        Variant(kernels.fill_kernel, tiles),
        copy_variant(head_dim, 256, is_tagged=True),
    )


def attention_variant(
    head_dim: int,
    *,
    heads: int = 1,
    numbers: str = "fp32",
    tile: int = TILE,
    num_warps: int = 4,
    num_stages: int = 1,
    is_checked: bool = True,
    is_gated: bool = False,
) -> Variant:
    """Attention over [slots, heads, head_dim]. Without checks it touches keys and values alone, as an engine's would."""
    constants = {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "TILE": tile,
        "ROW_FIELDS": ROW_FIELDS,
        "RANGE_FIELDS": RANGE_FIELDS,
        "IS_CHECKED": is_checked,
        "IS_GATED": is_gated,
    }
    return Variant(kernels.attention_kernel, constants, numbers, num_warps, num_stages)


def copy_variant(slot: int, tile: int, *, is_tagged: bool, numbers: str = "fp32") -> Variant:
    """`slot`: numbers of keys in a slot, of all heads; `tile`: numbers that a program copies, a power of two."""
    return Variant(kernels.copy_kernel, {"SLOT": slot, "TILE": tile, "IS_TAGGED": is_tagged}, numbers)
