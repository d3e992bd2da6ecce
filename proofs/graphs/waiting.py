"""Who waits for whom in one state of an engine: requests, the pool's blocks, fences, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from settled.reference.admission import full_sequence_fits
from settled.reference.engine import Engine
from settled.reference.request import Request, RequestStatus
from settled.reference.scheduler import is_ready

if TYPE_CHECKING:
    import networkx

POOL = "the pool"


def wait_for_graph(engine: Engine) -> networkx.DiGraph[str]:
    """A node a request, fenced free or unprocessed step, and one for the pool; an edge from who waits to what it waits for, with the
    `reason` in words."""
    import networkx

    graph: networkx.DiGraph[str] = networkx.DiGraph()
    scheduler = engine.scheduler
    graph.add_node(POOL)
    for request in scheduler.running:
        _running_waits(graph, engine, request)
    for place, request in enumerate(scheduler.waiting):
        _queued_waits(graph, engine, request, scheduler.waiting[place - 1] if place else None)
    _pool_waits(graph, engine)
    for number, step in enumerate(engine.unprocessed):
        earlier = f"step {engine.unprocessed[number - 1].step}" if number else "the host"
        graph.add_edge(f"step {step.step}", earlier, reason="steps are processed in order" if number else "its output is to be read")
    return graph


def _running_waits(graph: networkx.DiGraph[str], engine: Engine, request: Request) -> None:
    tokens = min(
        request.num_unscheduled_tokens + request.num_draft_tokens,
        engine.config.max_num_batched_tokens,
        engine.config.max_model_len - request.num_computed_tokens - 1,
    )
    if tokens > 0:
        needed = _blocks_needed(engine, request, tokens)
        if needed > _free(engine):
            graph.add_edge(request.request_id, POOL, reason=f"needs {needed} more blocks, {_free(engine)} are free")
    for entry in request.unprocessed:
        graph.add_edge(request.request_id, f"step {entry.step}", reason="is computed there")


def _queued_waits(graph: networkx.DiGraph[str], engine: Engine, request: Request, before: Request | None) -> None:
    if not is_ready(request):
        for entry in request.unprocessed:
            graph.add_edge(request.request_id, f"step {entry.step}", reason="its stale output comes first")
        return
    if before is not None and is_ready(before):
        graph.add_edge(request.request_id, before.request_id, reason="comes after it in the queue")
        return
    if len(engine.scheduler.running) >= engine.config.max_num_seqs:
        for other in engine.scheduler.running:
            graph.add_edge(request.request_id, other.request_id, reason=f"{engine.config.max_num_seqs} requests run at most")
        return
    needed = _blocks_to_admit(engine, request)
    if needed > _free(engine):
        graph.add_edge(request.request_id, POOL, reason=f"needs {needed} blocks to start, {_free(engine)} are free")


def _pool_waits(graph: networkx.DiGraph[str], engine: Engine) -> None:
    scheduler = engine.scheduler
    for request_id in scheduler.requests:
        held = {block for table in scheduler.kv_cache_manager.get_block_ids(request_id) for block in table if block}
        if held:
            graph.add_edge(POOL, request_id, reason=f"holds {len(held)} blocks")
    for free in scheduler.fence:
        fence = f"the fence of {free.request_id}"
        graph.add_edge(POOL, fence, reason=f"keeps {sum(len(table.blocks) for table in free.tables)} blocks")
        for step in engine.unprocessed:
            if any(entry.request.request_id == free.request_id for entry in step.entries):
                graph.add_edge(fence, f"step {step.step}", reason=f"carries {free.request_id}")


def _free(engine: Engine) -> int:
    return engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def _blocks_needed(engine: Engine, request: Request, tokens: int) -> int:
    slots = min(request.num_computed_tokens + tokens + engine.config.num_lookahead_tokens, engine.config.max_model_len)
    managers = engine.scheduler.kv_cache_manager.managers
    return sum(manager.get_num_blocks_to_allocate(request.request_id, slots, ()) for manager in managers)


def _blocks_to_admit(engine: Engine, request: Request) -> int:
    """What the gate asks for, or the first step, if that is more."""
    assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    manager = engine.scheduler.kv_cache_manager
    hit = manager.get_computed_blocks(request)
    gate = 0
    while not full_sequence_fits(manager.managers, request.num_tokens, hit.blocks, gate):
        gate += 1
    tokens = min(request.num_tokens - hit.num_tokens, engine.config.max_num_batched_tokens)
    slots = min(hit.num_tokens + tokens + engine.config.num_lookahead_tokens, engine.config.max_model_len)
    first = sum(
        group.get_num_blocks_to_allocate(request.request_id, slots, blocks)
        for group, blocks in zip(manager.managers, hit.blocks, strict=True)
    )
    return max(gate, first)


# ---- in words --------------------------------------------------------------------------------------------------------


def cycle_of(graph: networkx.DiGraph[str]) -> list[str]:
    """The nodes of a shortest cycle, starting with the first by name; empty if there is none."""
    import networkx

    cycles = sorted((_from_first(cycle) for cycle in networkx.simple_cycles(graph)), key=lambda cycle: (len(cycle), cycle))
    return cycles[0] if cycles else []


def _from_first(cycle: list[str]) -> list[str]:
    start = cycle.index(min(cycle, key=lambda node: (node == POOL, node)))
    return cycle[start:] + cycle[:start]


def why_stuck(graph: networkx.DiGraph[str]) -> str:
    """The cycle in a sentence; without one, what each waits for that nobody can give."""
    cycle = cycle_of(graph)
    if cycle:
        pairs = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        return "a cycle: " + "; ".join(f"{waits} waits for {on} ({_reason(graph, waits, on)})" for waits, on in pairs)
    waits = [f"{who} waits for {on} ({reason})" for who, on, reason in graph.edges(data="reason")]
    return "no cycle, nobody can give it: " + "; ".join(waits) if waits else "nobody waits for anything that is known here"


def _reason(graph: networkx.DiGraph[str], waits: str, on: str) -> str:
    reason = str(graph.edges[waits, on]["reason"])
    return f"{on} {reason}" if waits == POOL else f"{waits} {reason}"
