"""Keys and values as an engine keeps them, [blocks, block_size, heads, head_dim], and what runs over them: attention, block copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from settled.reference.device.cuda.variants import Variant, attention_variant, copy_variant


@dataclass(frozen=True, slots=True)
class Shape:
    """`window`: keys that each request's one query reads, in tokens; `numbers`: as Triton calls them."""

    requests: int
    window: int
    block_size: int
    heads: int
    head_dim: int
    numbers: str

    @property
    def dtype(self) -> torch.dtype:
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[self.numbers]

    @property
    def blocks_each(self) -> int:
        return self.window // self.block_size

    @property
    def block_bytes(self) -> int:
        """Of a block's keys; its values are as many."""
        return self.block_size * self.heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes_read(self) -> int:
        return 2 * self.requests * self.blocks_each * self.block_bytes

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim}"
        return f"{self.requests} requests, window {self.window}, {heads}, {self.numbers}, block {self.block_size}"


SHAPE = Shape(requests=256, window=4096, block_size=16, heads=8, head_dim=128, numbers="bf16")
SMALL = Shape(requests=2, window=32, block_size=16, heads=2, head_dim=16, numbers="fp32")
COPY_TILE = 2048  # numbers that a program copies


def attention_variants(shape: Shape, tries: tuple[tuple[int, int, int], ...]) -> dict[str, Variant]:
    """By name, of (tile, warps, stages). Which is fastest is for the device to say."""
    return {
        f"tile {tile}, {warps} warps, {stages} stages": attention_variant(
            shape.head_dim,
            heads=shape.heads,
            numbers=shape.numbers,
            tile=tile,
            num_warps=warps,
            num_stages=stages,
            is_checked=False,
        )
        for tile, warps, stages in tries
    }


def block_copy_variant(shape: Shape) -> Variant:
    return copy_variant(shape.heads * shape.head_dim, COPY_TILE, is_tagged=False, numbers=shape.numbers)


class PagedMemory:
    """`identity`, `paged`: block tables [requests, blocks], the same blocks one behind the other and at random. Block 0 is null. `spare`:
    blocks that no request holds, to copy to.
    """

    def __init__(self, shape: Shape, spare: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.shape = shape
        held = shape.requests * shape.blocks_each
        size = (1 + held + spare, shape.block_size, shape.heads, shape.head_dim)
        self.held, self.spare = held, spare
        self.keys = torch.randn(size, dtype=shape.dtype, device=device)
        self.values = torch.randn(size, dtype=shape.dtype, device=device)
        self.queries = torch.randn((shape.requests, shape.heads, shape.head_dim), dtype=shape.dtype, device=device)
        self.outputs = torch.full_like(self.queries, float("nan"))
        whole = torch.arange(1, 1 + held, dtype=torch.int32)
        self.identity = whole.view(shape.requests, -1).to(device)
        self.paged = whole[torch.randperm(held)].view(shape.requests, -1).contiguous().to(device)
        rows = [(request * shape.blocks_each, shape.block_size, request, 1) for request in range(shape.requests)]
        self._rows = torch.tensor(rows, dtype=torch.int32, device=device)
        self._ranges = torch.tensor([(0, shape.window, 0)] * shape.requests, dtype=torch.int32, device=device)
        self._integers = torch.zeros(16, dtype=torch.int32, device=device)  # in place of what only checks and gates use
        self._tags = torch.zeros(16, dtype=torch.int64, device=device)
        self._copy = block_copy_variant(shape)

    def attend(self, variant: Variant, table: Tensor) -> None:
        """Enqueues attention of all requests into `outputs`."""
        shape, unused, tags = self.shape, self._integers, self._tags
        variant.launch(
            (shape.requests, shape.heads),
            tags,
            self.keys,
            self.values,
            table,
            self._rows,
            self._ranges,
            tags,
            self.queries,
            self.outputs,
            tags,
            unused,
            unused,
            tags,
            unused,
            unused,
            unused,
            shape.head_dim**-0.5,
            0,
            shape.block_size,
            0,
            0,
            0,
        )

    def blocks_to_copy(self) -> tuple[Tensor, Tensor]:
        """(sources, targets): at random among those that are held, and as many that nobody holds."""
        order = torch.randperm(self.held)[: self.spare] + 1
        return order.to(self.keys.device), (torch.arange(self.spare) + 1 + self.held).to(self.keys.device)

    def copy_blocks(self, pairs: Tensor) -> None:
        """Enqueues them. `pairs` [copies, 2]: source and target."""
        numbers = self.shape.block_size * self.shape.heads * self.shape.head_dim
        grid = (len(pairs), -(-numbers // COPY_TILE))
        self._copy.launch(grid, self._tags, self.keys, self.values, pairs, 0, self.shape.block_size)


def far_from_truth(memory: PagedMemory, table: Tensor) -> float:
    """The largest distance of some requests' outputs from attention in float64, relative to their norm; NaN counts as infinite."""
    shape, worst = memory.shape, 0.0
    for request in sorted({0, shape.requests // 2, shape.requests - 1}):
        blocks = table[request].long()
        keys, values = (whole[blocks].view(shape.window, shape.heads, shape.head_dim).double() for whole in (memory.keys, memory.values))
        scores = torch.einsum("thd,hd->ht", keys, memory.queries[request].double()) * shape.head_dim**-0.5
        truth = torch.einsum("ht,thd->hd", torch.softmax(scores, 1), values)
        distance = (memory.outputs[request].double() - truth).norm(dim=1) / truth.norm(dim=1)
        worst = max(worst, float(distance.nan_to_num(float("inf")).max()))
    return worst
