"""Wait-for graphs of engines that wait for transfers, fences and steps."""

from __future__ import annotations

from settled.model.specs import FullAttentionSpec
from settled.proofs.graphs.waiting import cycle_of, wait_for_graph
from settled.reference.config import EngineConfig
from settled.reference.decisions import Decision, Player

CONFIG = EngineConfig(
    groups=(FullAttentionSpec(block_size=2),),
    num_blocks=12,
    max_in_flight_steps=2,
    max_num_batched_tokens=8,
    max_model_len=12,
    kv_consumer=True,
    connector=True,
)


def player_after(*decisions: Decision) -> Player:
    player = Player(CONFIG)
    for decision in decisions:
        assert player.take(decision), decision
    return player


def reasons(player: Player) -> dict[tuple[str, str], str]:
    graph = wait_for_graph(player.engine)
    assert cycle_of(graph) == []
    return {(waits, on): reason for waits, on, reason in graph.edges(data="reason")}


def test_a_request_waits_for_its_load() -> None:
    told = reasons(player_after(Decision("add", (4, 0, 0)), Decision("offer", (1, 0, 0, 1, 0)), Decision("schedule", (0,))))
    assert told["r0", "load 0"] == "is not loaded yet"
    assert told["load 0", "the connector"] == "a worker has not reported yet"
    assert told["the pool", "r0"].startswith("holds ")


def test_the_pool_waits_for_the_fence_of_what_ended() -> None:
    told = reasons(player_after(Decision("add", (4, 0, 0)), Decision("schedule", (0,)), Decision("abort", (0,))))
    assert told["the pool", "the fence of r0"].startswith("keeps ")
    assert told["the fence of r0", "step 0"] == "carries r0"
    assert told["step 0", "the host"] == "its output is to be read"


def test_a_preempted_request_waits_for_its_stale_output() -> None:
    told = reasons(player_after(Decision("add", (4, 0, 0)), Decision("schedule", (0,)), Decision("preempt", (0, 0))))
    assert told["r0", "step 0"] == "its output comes first"


def test_an_aborted_load_keeps_its_blocks_until_it_is_over() -> None:
    player = player_after(
        Decision("add", (4, 0, 0)), Decision("offer", (1, 0, 0, 1, 0)), Decision("schedule", (0,)), Decision("abort", (0,))
    )
    assert reasons(player)["the fence of r0", "load 0"] == "moves blocks of r0"
    assert player.take(Decision("report", (0, 0)))
    assert not reasons(player)
