"""KV connectors: who offers KV from elsewhere, stores what requests compute, and is shown the table of a finished request.

A connector decides; the scheduler keeps the books (`remote_kv.py`). Method names are those of vLLM's scheduler side where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from settled.model.events import PerGroup
from settled.reference.request import Request, StepOutput
from settled.reference.transfers import Completion, Transfer


class KVConnector(Protocol):
    """Moves KV between pool blocks and elsewhere, on its own stream. Every count is in tokens."""

    num_workers: int
    """How many workers report each transfer; it is over with the last report."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens after the first `num_computed_tokens` can be loaded, and whether the load is asynchronous.

        None: not known yet, ask again in a later step. A synchronous load leaves at least one token to compute.
        """

    def update_state_after_alloc(self, request: Request, load: Transfer) -> None:
        """The blocks of a load are there: it may start."""

    def get_num_tokens_to_store(self, request: Request, num_settled_tokens: int) -> int:
        """Up to which token what a running request has computed is to be stored now; `num_settled_tokens` are final."""

    def request_finished(self, request_id: str, block_ids: PerGroup) -> bool:
        """The request is over. `block_ids`, per group: its pruned table over computed tokens, null (0) where pruned.

        Returns whether all of it is to be stored: its blocks are freed only when that store is over.
        """

    def start_store(self, store: Transfer) -> None:
        """The blocks of a store will not be written any more: it may start."""

    def get_finished(self, step: StepOutput | None) -> Sequence[Completion]:
        """What the workers report with the output of `step`, failures of its synchronous loads included; None: between outputs."""


class LastTableConnector:
    """Has nothing to load, stores nothing, and remembers the table of the request that finished last."""

    def __init__(self) -> None:
        self.num_workers = 1
        self.request_id: str | None = None
        self.block_ids: PerGroup = ()

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Request, load: Transfer) -> None:
        """Nothing is offered, so nothing is loaded, unless a script does it."""

    def get_num_tokens_to_store(self, request: Request, num_settled_tokens: int) -> int:
        return 0

    def request_finished(self, request_id: str, block_ids: PerGroup) -> bool:
        self.request_id, self.block_ids = request_id, block_ids
        return False

    def start_store(self, store: Transfer) -> None:
        """Nothing is stored, unless a script does it."""

    def get_finished(self, step: StepOutput | None) -> Sequence[Completion]:
        return ()
