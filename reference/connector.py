"""What a KV connector gets to see. Version 1 of the reference tells it about finished requests; it moves no bytes yet."""

from __future__ import annotations

from typing import Protocol

from settled.model.events import PerGroup


class KVConnector(Protocol):
    """Moves KV between pool blocks and elsewhere."""

    def request_finished(self, request_id: str, block_ids: PerGroup) -> None:
        """The request is over. `block_ids`, per group: its pruned table over computed tokens, null (0) where pruned."""


class LastTableConnector:
    """Remembers the table of the request that finished last."""

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.block_ids: PerGroup = ()

    def request_finished(self, request_id: str, block_ids: PerGroup) -> None:
        self.request_id, self.block_ids = request_id, block_ids
