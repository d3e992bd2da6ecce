"""A connector without a worker: requests named load... load the first tokens of their prompt, those named keep... are stored at the end."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

LOADED_TOKENS = 48


class Nothing(KVConnectorMetadata):
    """There is no worker to tell anything."""


class LoadingConnector(KVConnectorBase_V1, SupportsHMA):
    """Those named loadsync... load within their first step."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.has_loaded: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if not request.request_id.startswith("load") or request.request_id in self.has_loaded:
            return 0, False
        return max(0, LOADED_TOKENS - num_computed_tokens), not request.request_id.startswith("loadsync")

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.has_loaded.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return Nothing()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return request.request_id.startswith("keep"), None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return self.request_finished(request, block_ids)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
