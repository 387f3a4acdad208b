"""Where is the fleet full?"""

from deployments.dashboards.panels import BY_POOL, Dashboard, Panel
from deployments.dashboards.queries import Query, gauge, one, quantiles, rate

TRANSFER = 'stage="kv_transfer"'

POOLS = Dashboard(
    name="pools",
    title="pools and KV",
    question="Where is the fleet full, and does the handoff work?",
    labels=("model", "pool"),
    panels=(
        Panel(
            title="Replicas",
            meaning="Up, and ejected by gateways.",
            unit="none",
            queries=(
                Query(expression=gauge("replicas", "pool", BY_POOL, "max"), legend="{{pool}}"),
                Query(expression=gauge("ejected_replicas", "pool", BY_POOL, "max"), legend="{{pool}} ejected"),
            ),
        ),
        Panel(
            title="Size that scaling wants",
            meaning="Replicas that a pool has or will have and those of them that start; others drain or are warm.",
            unit="none",
            queries=(
                Query(expression=gauge("target_replicas", "pool", BY_POOL, "max"), legend="{{pool}}"),
                Query(
                    expression=gauge("starting_replicas", "pool", BY_POOL, "max"), legend="{{pool}} of them starting"
                ),
                Query(expression=gauge("draining_replicas", "pool", BY_POOL, "max"), legend="{{pool}} draining"),
                Query(expression=gauge("warm_replicas", "pool", BY_POOL, "max"), legend="{{pool}} warm"),
            ),
        ),
        Panel(
            title="Requests in batches",
            meaning="Running in the engine, by replica.",
            unit="none",
            queries=one(gauge("replica_num_requests_running", "pool, replica", BY_POOL, "max"), "{{pool}} {{replica}}"),
        ),
        Panel(
            title="Requests that wait inside engines",
            meaning="Can't be put in order or refused any more; gateway.prefill_window_tokens keeps them out.",
            unit="none",
            queries=one(gauge("replica_num_requests_waiting", "pool, replica", BY_POOL, "max"), "{{pool}} {{replica}}"),
        ),
        Panel(
            title="KV blocks in use",
            meaning="Near 1 the engine preempts sequences and recomputes them.",
            unit="percentunit",
            queries=one(gauge("replica_kv_cache_usage", "pool, replica", BY_POOL, "max"), "{{pool}} {{replica}}"),
        ),
        Panel(
            title="Batch efficiency",
            meaning="Tokens of a decode step for its time / those of a full batch. Needs an engine profile.",
            unit="percentunit",
            queries=one(gauge("replica_batch_efficiency", "pool, replica", BY_POOL, "max"), "{{pool}} {{replica}}"),
        ),
        Panel(
            title="Memory bandwidth in decode steps",
            meaning="Part of a step in which weights and KV are read, by the engine profile.",
            unit="percentunit",
            queries=one(
                gauge("replica_memory_bandwidth_fraction", "pool, replica", BY_POOL, "max"), "{{pool}} {{replica}}"
            ),
        ),
        Panel(
            title="Tokens",
            meaning="Prompt tokens in and tokens out of engines.",
            unit="none",
            queries=(
                Query(expression=rate("replica_prompt_tokens_total", "pool", BY_POOL), legend="{{pool}} prompt"),
                Query(expression=rate("replica_output_tokens_total", "pool", BY_POOL), legend="{{pool}} out"),
            ),
        ),
        Panel(
            title="Prefix hits",
            meaning="Prompt tokens that engines found in their prefix caches, or gateways expected, / prompt tokens.",
            unit="percentunit",
            queries=(
                Query(
                    expression=f"{rate('cached_prompt_tokens_total')} / {rate('prompt_tokens_total')}", legend="found"
                ),
                Query(
                    expression=f"{rate('expected_cached_prompt_tokens_total')} / {rate('prompt_tokens_total')}",
                    legend="expected",
                ),
            ),
        ),
        Panel(
            title="KV transfers",
            meaning="Prompts whose KV came from a prefill replica, and transfers that failed.",
            unit="ops",
            queries=(
                Query(expression=rate("request_stage_seconds_count", where=TRANSFER), legend="transfers"),
                Query(expression=rate("replica_kv_transfer_failures_total", "pool", BY_POOL), legend="{{pool}} failed"),
            ),
        ),
        Panel(
            title="KV transfer time",
            meaning="From a decode's coming to its replica until its prompt's KV is there.",
            unit="s",
            queries=quantiles("request_stage_seconds", 0.5, 0.99, where=TRANSFER),
        ),
        Panel(
            title="KV bytes",
            meaning="That came from prefill replicas.",
            unit="Bps",
            queries=one(rate("replica_kv_bytes_received_total", "pool", BY_POOL), "{{pool}}"),
        ),
        Panel(
            title="Draft tokens accepted",
            meaning="With speculative decoding, of those that drafts have proposed.",
            unit="percentunit",
            queries=one(
                f"{rate('replica_accepted_tokens_total', 'pool', BY_POOL)} / "
                f"{rate('replica_draft_tokens_total', 'pool', BY_POOL)}",
                "{{pool}}",
            ),
        ),
        Panel(
            title="Attempts by replica",
            meaning="An even fleet takes even shares of work, not of requests.",
            unit="reqps",
            queries=one(rate("replica_attempts_total", "pool, replica", BY_POOL), "{{pool}} {{replica}}"),
        ),
    ),
)
