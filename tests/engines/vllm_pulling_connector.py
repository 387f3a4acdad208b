"""A KV connector for vLLM's scheduler whose transfers arrive when a test says so. Only vLLM imports this file."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class PullingConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Pulls the whole prompt of requests that say ``do_remote_prefill``, once each, as vLLM's NIXL connector does."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        params = request.kv_transfer_params or {}
        num_tokens = request.num_prompt_tokens - num_computed_tokens
        return (num_tokens, True) if params.get("do_remote_prefill") and num_tokens else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if request.kv_transfer_params:
            request.kv_transfer_params["do_remote_prefill"] = False

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params or {}
        return bool(params.get("do_remote_decode")), None

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_save(self) -> None:
        raise NotImplementedError
