"""Who waits for whom in one state of an engine: requests, the pool's blocks, fences, steps, transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from settled.proofs.graphs.states import freeze, thaw
from settled.reference.engine import Engine
from settled.reference.free_queue import KVCacheBlock
from settled.reference.request import Request, RequestStatus
from settled.reference.transfers import Transfer

if TYPE_CHECKING:
    import networkx

POOL = "the pool"
EXTRA_MAX = 64


def wait_for_graph(engine: Engine) -> networkx.DiGraph[str]:
    """A node a request, fenced free, unprocessed step or transfer, and one for the pool; an edge from who waits to what it waits for.

    An edge's `reason` says it in words.
    """
    import networkx

    graph: networkx.DiGraph[str] = networkx.DiGraph()
    scheduler = engine.scheduler
    graph.add_node(POOL)
    missing = missing_blocks(engine)
    for request in scheduler.requests.values():
        _request_waits(graph, engine, request, missing.get(request.request_id))
    _queue_waits(graph, engine, missing)
    _pool_waits(graph, engine)
    for number, step in enumerate(engine.unprocessed):
        earlier = f"step {engine.unprocessed[number - 1].step}" if number else "the host"
        graph.add_edge(f"step {step.step}", earlier, reason="steps are processed in order" if number else "its output is to be read")
    return graph


def _request_waits(graph: networkx.DiGraph[str], engine: Engine, request: Request, missing: int | None) -> None:
    """`missing`: blocks with which it would be in the next step; 0 if it will be, None if blocks alone are no help."""
    who = request.request_id
    if missing:
        free = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        graph.add_edge(who, POOL, reason=f"lacks {_blocks(missing)}, {free} free")
    elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and request.pending_load is not None:
        graph.add_edge(who, f"load {request.pending_load}", reason="is not loaded yet")
    elif missing is None:
        for entry in request.unprocessed:
            graph.add_edge(who, f"step {entry.step}", reason="its output comes first")


def _queue_waits(graph: networkx.DiGraph[str], engine: Engine, missing: dict[str, int]) -> None:
    """Who cannot start for want of a place waits for those who have one; the others wait for whoever comes before."""
    scheduler = engine.scheduler
    waiting = [request for request in scheduler.waiting if request.is_ready]
    for place, request in enumerate(waiting):
        if len(scheduler.running) >= engine.config.max_num_seqs:
            for other in scheduler.running:
                graph.add_edge(request.request_id, other.request_id, reason=f"{engine.config.max_num_seqs} requests run at most")
        elif place and missing.get(waiting[place - 1].request_id) != 0:
            graph.add_edge(request.request_id, waiting[place - 1].request_id, reason="comes after it in the queue")


def _pool_waits(graph: networkx.DiGraph[str], engine: Engine) -> None:
    scheduler = engine.scheduler
    for request_id in scheduler.requests:
        held = {block for table in scheduler.kv_cache_manager.get_block_ids(request_id) for block in table if block}
        if held:
            graph.add_edge(POOL, request_id, reason=f"holds {_blocks(len(held))}")
    for free in scheduler.fence:
        fence = f"the fence of {free.request_id}"
        graph.add_edge(POOL, fence, reason=f"keeps {_blocks(sum(len(table.blocks) for table in free.tables))}")
        for step in engine.unprocessed:
            if any(entry.request.request_id == free.request_id for entry in step.entries):
                graph.add_edge(fence, f"step {step.step}", reason=f"carries {free.request_id}")
        for job in free.jobs:
            graph.add_edge(fence, _transfer(scheduler.remote.transfers.under_way[job]), reason=f"moves blocks of {free.request_id}")
    for transfer in scheduler.remote.transfers.under_way.values():
        if transfer.pins:
            graph.add_edge(POOL, _transfer(transfer), reason=f"pins {_blocks(sum(map(len, transfer.where.blocks)))}")
        graph.add_edge(_transfer(transfer), "the connector", reason="a worker has not reported yet")


def _blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"


def _transfer(transfer: Transfer) -> str:
    return f"{'load' if transfer.is_load else 'store'} {transfer.job}"


def missing_blocks(engine: Engine) -> dict[str, int]:
    """For each request, with how many more blocks in the pool it would be in the next step; left out if up to `EXTRA_MAX` do not help.

    Found by trying: on copies of the engine with a larger pool.
    """
    frozen = freeze(engine)
    missing: dict[str, int] = {}
    if not engine.can_schedule:
        return missing
    for extra in range(EXTRA_MAX + 1):
        copy = thaw(frozen)
        pool = copy.scheduler.kv_cache_manager.block_pool
        more = [KVCacheBlock(len(pool.blocks) + number) for number in range(extra)]
        pool.blocks.extend(more)
        pool.free_block_queue.append_n(more)
        step = copy.schedule()
        for entry in step.entries if step is not None else ():
            missing.setdefault(entry.request.request_id, extra)
        if len(missing) == len(engine.scheduler.requests):
            break
    return missing


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
