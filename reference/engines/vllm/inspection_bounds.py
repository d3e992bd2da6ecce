"""What a request may hold: the release's own cap, and what its admission gate counted when it let the request in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from settled.reference.engines.protocol import Anomaly
from settled.reference.engines.vllm.inspection_view import View, held

HELD_BOUNDED = "held_bounded"
ADMISSION_GATE = "admission_gate"  # what the gate counts is enough; where it is not, a request may have to be preempted for what it misses


def caps(view: View) -> Iterator[Anomaly]:
    """No request holds more of a group than start-up sizing counts for one, and the gate counts no more than that either."""
    for group, manager in enumerate(view.managers):
        kind, cap, gate_cap = view.kinds[group], view.sizing_cap(group), view.gate_cap(group)
        if gate_cap is not None and gate_cap > cap:
            what = f"the gate counts up to {gate_cap} blocks of group {group} for a request, and start-up sizing {cap}"
            yield Anomaly(ADMISSION_GATE, f"gate_above_sizing[{kind}]", what)
        for request_id, table in manager.req_to_blocks.items():
            count = held(table)
            if count > cap:
                why = ", lookahead" if view.lookahead_of(group) > 1 else ""  # for one slot more, as each step has, the caps leave room
                what = (
                    f"request {request_id} holds {count} blocks of group {group} ({kind}), and start-up sizing counts {cap} for a request"
                )
                yield Anomaly(HELD_BOUNDED, f"above_cap[{kind}{why}]", what)


class Admission(NamedTuple):
    """What the gate counted for a request: blocks of each group for its `tokens`, of which it found some computed already (`has_hit`)."""

    blocks: tuple[int, ...]
    tokens: int
    has_hit: bool


class Gate:
    """Listens to the admission gate: the blocks of each group that it counted for the request that it let in.

    The gate counts the whole sequence as it then is, capped, less what the request finds in the prefix cache; what is counted here is
    all that the request may hold with it. Releases before 0.20 have no gate, and nothing is recorded.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._asked: list[int] | None = None  # blocks of each group counted for the request at the gate, while it is asked
        self._has_hit = False  # whether the request that is asked found tokens computed
        self.counted: dict[str, Admission] = {}  # by request, until it grows past the tokens that were counted
        self._admitted: set[str] = set()  # since the last look
        for group, manager in enumerate(view.managers):
            self._listen_to(group, manager)
        self._guard("allocate_slots")
        if hasattr(view.kv_cache_manager, "can_fit_full_sequence"):  # 0.20: a call of its own
            self._guard("can_fit_full_sequence")

    def _listen_to(self, group: int, manager: Any) -> None:
        original = manager.get_num_blocks_to_allocate

        def get_num_blocks_to_allocate(request_id: str, *args: Any, **keywords: Any) -> Any:
            answer = original(request_id, *args, **keywords)
            if self._asked is not None and keywords.get("apply_admission_cap"):
                hits = keywords["new_computed_blocks"] if "new_computed_blocks" in keywords else args[1]
                shared = len([block for block in hits if block.ref_cnt and not block.is_null])
                self._has_hit = bool(keywords["total_computed_tokens"] if "total_computed_tokens" in keywords else args[2])
                self._asked[group] = answer + shared + held(manager.req_to_blocks.get(request_id, ()))
            return answer

        manager.get_num_blocks_to_allocate = get_num_blocks_to_allocate

    def _guard(self, name: str) -> None:
        owner = self._view.kv_cache_manager
        original = getattr(owner, name)

        def ask(request: Any, *args: Any, **keywords: Any) -> Any:
            is_gate = name != "allocate_slots" or keywords.get("full_sequence_must_fit")
            if not is_gate:
                return original(request, *args, **keywords)
            self._asked = [-1] * len(self._view.managers)
            try:
                answer = original(request, *args, **keywords)
                if answer is not None and answer is not False and min(self._asked) >= 0:
                    tokens = min(request.num_tokens, owner.max_model_len)
                    self.counted[request.request_id] = Admission(tuple(self._asked), tokens, self._has_hit)
                    self._admitted.add(request.request_id)
            finally:
                self._asked = None
            return answer

        setattr(owner, name, ask)

    def inspect(self) -> Iterator[Anomaly]:
        """Within the tokens that the gate counted for, a request holds no more blocks than it counted, nor with the step that admits it.

        What a request takes once it has grown past them is no matter of the gate, and it keeps that when its count goes back.
        """
        view = self._view
        for request_id, admission in list(self.counted.items()):
            request = view.requests.get(request_id)
            if request is None or (request.num_computed_tokens > admission.tokens and request_id not in self._admitted):
                del self.counted[request_id]
                continue
            for group, manager in enumerate(view.managers):
                table = manager.req_to_blocks.get(request_id, ())
                if held(table) > admission.blocks[group]:
                    cause = f"gate_undercounts[{view.kinds[group]}{self._why(admission, group, table)}]"
                    what = f"request {request_id} was admitted with {admission.blocks[group]} blocks of group {group} ({view.kinds[group]})"
                    yield Anomaly(ADMISSION_GATE, cause, f"{what} for its {admission.tokens} tokens, and holds {held(table)}")
        self._admitted.clear()

    def _why(self, admission: Admission, group: int, table: Sequence[Any]) -> str:
        """What the gate leaves out, if it is plain: slots for drafts past the sequence, or a cap from which what a hit skips is subtracted.

        States have neither such slots nor a cap.
        """
        if self._view.kinds[group].startswith("mamba"):
            return ""
        view, missing = self._view, held(table) - admission.blocks[group]
        size = view.managers[group].block_size
        if missing <= len(table) - -(-admission.tokens // size):
            return ", lookahead"
        if admission.has_hit:
            return ", behind a hit"
        return ", lookahead" if missing <= -(-view.lookahead_of(group) // size) else ""  # past a chunk of it, under a cap
