"""Op logs made by hand: a small host that gives blocks to requests and says what each step should find. No engine is behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from settled.model.specs import KVCacheSpec, MambaSpec
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HOST,
    JANITOR,
    BlocksWork,
    CopyWork,
    FillWork,
    Free,
    KeysPart,
    Launch,
    LaunchKind,
    OpLog,
    Slots,
    StatesPart,
    StepWork,
    TransferWork,
)
from settled.reference.device.reading import reading_of
from settled.reference.device.tags import LOOKAHEAD, Tag, pack


@dataclass
class Request:
    """`tables`: block ids by group, 0 where nothing is held; `tags`: by group, one a computed token."""

    number: int
    prompt_tokens: int
    tables: list[list[int]]
    tags: list[list[int]]

    @property
    def computed(self) -> int:
        return len(self.tags[0])


@dataclass
class Host:
    """Appends to `log`. Methods return the index of the launch that a test names in its orders."""

    groups: tuple[KVCacheSpec, ...]
    num_blocks: int = 32
    num_staging: int = 2
    transfers: int = 1
    log: OpLog = field(init=False)
    pool: list[int] = field(init=False)
    requests: list[Request] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.log = OpLog(self.groups, self.num_blocks, self.num_staging, FIRST_TRANSFER + self.transfers)
        self.pool = list(range(1, self.num_blocks))

    def add(self, prompt_tokens: int = 8) -> Request:
        request = Request(len(self.requests), prompt_tokens, [[] for _ in self.groups], [[] for _ in self.groups])
        self.requests.append(request)
        return request

    def launch(self, stream: int, kind: LaunchKind, work: object) -> int:
        self.log.ops.append(Launch(stream, kind, (), (), work))  # type: ignore[arg-type]
        return len(self.log.ops) - 1

    # ---- steps ---------------------------------------------------------------------------------------------------------

    def step(self, *shares: tuple[Request, int], is_delivered: bool = True, lookahead: int = 0) -> int:
        """FILL, UPLOAD, WRITE, STEP of the tokens given; blocks come from the pool as they are needed. Returns the STEP."""
        rows: list[tuple[int, ...]] = []
        parts: list[KeysPart | StatesPart] = []
        for request, tokens in shares:
            for group, spec in enumerate(self.groups):
                make = self._states if isinstance(spec, MambaSpec) else self._keys
                parts.append(make(request, group, tokens, len(rows), is_delivered, lookahead))
                rows.append(parts[-1].blocks)
        staging = self.steps % self.num_staging
        self.steps += 1
        self.launch(HOST, LaunchKind.FILL, FillWork(staging, tuple(rows)))
        self.launch(COMPUTE, LaunchKind.UPLOAD, FillWork(staging, tuple(rows)))
        work = StepWork(self.steps - 1, tuple(parts))
        if any(isinstance(part, KeysPart) for part in parts):
            self.launch(COMPUTE, LaunchKind.WRITE, work)
        return self.launch(COMPUTE, LaunchKind.STEP, work)

    def _keys(self, request: Request, group: int, tokens: int, row: int, is_delivered: bool, lookahead: int) -> KeysPart:
        spec, table, tags = self.groups[group], request.tables[group], request.tags[group]
        start = len(tags)
        new = [pack(Tag(request.number, 0, group, 0, start + token)) for token in range(tokens)]
        new_lookahead = [pack(Tag(request.number, 0, group, LOOKAHEAD, start + tokens + token)) for token in range(lookahead)]
        tags.extend(new)
        while len(table) * spec.block_size < start + tokens + lookahead:
            table.append(self.take())
        reading = reading_of(spec)
        first = min(reading(query, request.prompt_tokens)[0][0] for query in range(start, start + tokens))
        expected = tuple(tags[first:])
        written = (*new, *new_lookahead)
        prompt = request.prompt_tokens
        return KeysPart(str(request.number), group, row, tuple(table), start, tokens, prompt, written, first, expected, is_delivered)

    def _states(self, request: Request, group: int, tokens: int, row: int, is_delivered: bool, lookahead: int) -> StatesPart:
        """One state in table index 0, rewritten by each step."""
        table, tags = request.tables[group], request.tags[group]
        before = tuple(tags)
        new = tuple(pack(Tag(request.number, 0, group, 0, len(before) + token)) for token in range(tokens))
        tags.extend(new)
        if not table:
            table.append(self.take())
        writes = ((0, tokens),)
        read = 0 if before else None
        return StatesPart(str(request.number), group, row, tuple(table), len(before), tokens, read, before, new, writes, is_delivered)

    # ---- blocks --------------------------------------------------------------------------------------------------------

    def take(self) -> int:
        return self.pool.pop(0)

    def free(self, request: Request, group: int, index: int) -> int:
        """The table entry becomes null, the block goes to the end of the pool. Returns the block."""
        block = request.tables[group][index]
        request.tables[group][index] = 0
        self.pool.append(block)
        self.log.ops.append(Free((block,)))
        return block

    def prune(self, request: Request) -> None:
        """Frees what no later query reads."""
        for group, spec in enumerate(self.groups):
            if isinstance(spec, MambaSpec):
                continue
            reading, size, at = reading_of(spec), spec.block_size, request.computed
            read = [range(first, end) for query in range(at, at + 200) for first, end in reading(query, request.prompt_tokens)]
            for index, block in enumerate(request.tables[group]):
                if block and not any(set(range(index * size, (index + 1) * size)) & set(positions) for positions in read):
                    self.free(request, group, index)

    def load(self, *slots: Slots, stream: int = FIRST_TRANSFER) -> int:
        return self.launch(stream, LaunchKind.LOAD, TransferWork("load", slots))

    def store(self, *slots: Slots, stream: int = FIRST_TRANSFER) -> int:
        return self.launch(stream, LaunchKind.STORE, TransferWork("store", slots))

    def store_block(self, request: Request, group: int, index: int, stream: int = FIRST_TRANSFER) -> int:
        """A STORE of what the block should hold."""
        size = self.groups[group].block_size
        tags = tuple(request.tags[group][index * size : (index + 1) * size])
        return self.store(Slots(request.tables[group][index], 0, tags), stream=stream)

    def zero(self, *blocks: int) -> int:
        return self.launch(COMPUTE, LaunchKind.ZERO, BlocksWork(blocks))

    def poison(self, *blocks: int) -> int:
        return self.launch(JANITOR, LaunchKind.POISON, BlocksWork(blocks))

    def copy(self, source: int, target: int) -> int:
        return self.launch(COMPUTE, LaunchKind.COPY, CopyWork(source, target))


def foreign(request: int, count: int, first: int = 0) -> tuple[int, ...]:
    """Tags of somebody else."""
    return tuple(pack(Tag(request, 0, 0, 0, first + token)) for token in range(count))


def random_log(
    seed: int, groups: tuple[KVCacheSpec, ...], steps: int = 8, requests: int = 3, num_blocks: int = 64, longest_prompt: int = 12
) -> OpLog:
    """A log that is right in the order of its ops: chunks, decodes, prunes, loads into free blocks, stores, copies, zeroes, poison."""
    random = Random(seed)
    host = Host(groups, num_blocks, transfers=2)
    running = [host.add(random.randint(2, longest_prompt)) for _ in range(requests)]
    for _ in range(steps):
        shares = [(request, _tokens(random, request)) for request in running if random.random() < 0.8]
        if not shares:
            continue
        if random.random() < 0.3:
            host.zero(host.pool[0])
        host.step(*shares, is_delivered=random.random() < 0.8, lookahead=random.choice((0, 0, 2)))
        for request, _ in shares:
            host.prune(request)
        _something(random, host, running)
    return host.log


def _tokens(random: Random, request: Request) -> int:
    left = request.prompt_tokens - request.computed
    return random.randint(1, max(1, left)) if left > 0 else random.choice((1, 1, 2, 3))


def _something(random: Random, host: Host, running: Iterable[Request]) -> None:
    """A transfer, a copy or poison, of blocks that nobody holds or that stay."""
    size = max((spec.block_size for spec in host.groups if not isinstance(spec, MambaSpec)), default=1)
    stream = FIRST_TRANSFER + random.randrange(2)
    match random.randrange(6):
        case 0:
            host.load(*(Slots(block, 0, foreign(900, size)) for block in host.pool[-2:]), stream=stream)
        case 1:
            host.poison(*host.pool[-2:])
        case 2:
            full = [
                (request, group, index)
                for request in running
                for group, spec in enumerate(host.groups)
                for index, block in enumerate(request.tables[group])
                if block and not isinstance(spec, MambaSpec) and (index + 1) * spec.block_size <= request.computed
            ]
            if full:
                host.store_block(*random.choice(full), stream=stream)
        case 3:
            request = random.choice(list(running))
            held = [(group, index) for group, table in enumerate(request.tables) for index, block in enumerate(table) if block]
            if held:
                group, index = random.choice(held)
                target = host.take()
                host.copy(request.tables[group][index], target)
                host.free(request, group, index)
                request.tables[group][index] = target
