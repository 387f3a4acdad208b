"""What worker processes of engines that take part in a KV handoff have beside vLLM's own code.

vLLM imports a class of the user's choice into each worker process (``worker_extension_cls``) before NIXL starts.
Importing this module

- sets a pause between two looks at NIXL's transports. As its Python API makes it, its progress thread never pauses:
  0.84 to 0.98 of a core per engine, idle or not, measured on CPU nodes. A millisecond brings that to 0.013; an event on
  a transport ends the pause early;
- has vLLM pull no blocks whose lease is over (:mod:`engines.vllm.nixl.leases`).
"""

import logging
import os
from typing import Any

from nixl._api import nixlBind

from engines.vllm.nixl.leases import LeaseWatch, time_of_day_s

LOGGER = logging.getLogger("vllm.spillway")


class NixlWorker:
    """The class that vLLM asks for; the module's import has done the work."""


def _pause_between_polls(interval_s: float) -> None:
    make_agent = nixlBind.nixlAgent

    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = int(interval_s * 1e6)
        return make_agent(name, config)

    nixlBind.nixlAgent = agent


_pause_between_polls(float(os.environ.get("SPILLWAY_KV_POLL_INTERVAL_S", "0")))

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector  # noqa: E402 - NIXL starts with that


class LeaseKeepingWorker(connector.NixlPullConnectorWorker):
    """vLLM's own, that neither begins to read blocks whose lease is over nor believes what it has read until then."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        lease_s = vllm_config.kv_transfer_config.get_from_extra_config("kv_lease_duration", 30)
        self._leases = LeaseWatch(lease_s)

    def _send_heartbeats(self, metadata: Any) -> None:
        sent_at_s = time_of_day_s()
        super()._send_heartbeats(metadata)
        for engine_id, heartbeat in metadata.heartbeat_by_engine.items():
            if engine_id in self._remote_agents:
                self._leases.renew(heartbeat.req_ids, sent_at_s)

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        if any(meta.local_block_ids) and self._is_over(req_id, meta):
            self.xfer_stats.record_kv_expired_req()  # no failure of the other engine, which would be shunned for it
            self._handle_failed_transfer(req_id, None, self._recv_failures, record_failed_transfer=False)
        else:
            super()._read_blocks_for_req(req_id, meta)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        done, failed = super()._pop_done_transfers(transfers)
        failed |= {each for each in done - failed if self._is_over(each, self._recving_metadata[each])}
        return done, failed

    def _is_over(self, req_id: str, meta: Any) -> bool:
        remote = meta.remote
        if not self._leases.is_over(remote.request_id, remote.blocks_expiry_time, time_of_day_s()):
            return False
        LOGGER.warning("the lease of %s's KV at %s is over: it is not pulled", req_id, remote.host)
        return True


connector.NixlPullConnectorWorker = LeaseKeepingWorker
