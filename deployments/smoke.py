"""Does the handoff work, do clients that leave cost nothing, does a killed engine come back? Asks a real deployment.

``python -m deployments.smoke`` starts ``local-vllm.yaml`` and, for comparison, ``unified-vllm.yaml`` on ports of their
own, prints a line for each check, and ends with status 1 when one has failed.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from deployments.launch import CONFIGS, Deployment, interrupt, running
from deployments.local.inner_ports import is_free
from policies.errors import ServingError

MODEL = "tiny-llama"
PORTS = range(8400, 8500)
"""The first that are free: the system gives none of them to a connection before a deployment listens there."""
PROMPT_TOKENS = (5, 8, 16, 31, 64, 100, 127, 128, 129, 200, 256, 333, 512, 700, 1024, 1500, 2048, 3000, 5000, 7000)
OUTPUT_TOKENS = 24
LONG_OUTPUT_TOKENS = 3_000
"""Of the stream that its replica dies under: seconds, after it has gone on."""
NUM_LEAVERS = 50
PATIENCE_S = 30.0
RECOVERY_PATIENCE_S = 600.0
POLL_S = 0.2

Samples = Mapping[tuple[str, str], float]
"""Metric values by name (without its prefix) and pool."""


class CheckFailed(Exception):
    """What a check found instead of what it should have; the message is its line."""


async def same_tokens_as_unified(client: httpx.AsyncClient, unified: httpx.AsyncClient) -> str:
    """Prefill and decode on two engines give the token ids that one engine gives, and each saw every request."""
    before = await _scrape(client)
    rng = random.Random(7)
    for length in PROMPT_TOKENS:
        prompt = [rng.randrange(5, 1000) for _ in range(length)]
        split, whole = await _token_ids(client, prompt), await _token_ids(unified, prompt)
        if split != whole or len(split) != OUTPUT_TOKENS:
            raise CheckFailed(f"a prompt of {length} tokens gave {split} after the handoff and {whole} on one engine")
    return await _handoff_was_real(client, before)


async def _handoff_was_real(client: httpx.AsyncClient, before: Samples) -> str:
    def grew(name: str, pool: str) -> Callable[[Samples], float]:
        return lambda now: now.get((name, pool), 0) - before.get((name, pool), 0)

    prefills, decodes = grew("attempts_total", "prefill"), grew("attempts_total", "decode")
    transferred = grew("kv_tokens_received_total", "decode")
    wanted, tokens = len(PROMPT_TOKENS), sum(PROMPT_TOKENS)
    now = await _until(
        client,
        lambda now: prefills(now) == wanted == decodes(now) and transferred(now) >= tokens,
        lambda now: (
            f"{wanted} requests of {tokens} prompt tokens made {prefills(now):.0f} prefill and {decodes(now):.0f} "
            f"decode attempts and moved {transferred(now):.0f} KV tokens"
        ),
    )
    return (
        f"{wanted} prompts of {PROMPT_TOKENS[0]} to {PROMPT_TOKENS[-1]:,} tokens: prefill/decode gives the token ids "
        f"of one engine; each replica saw {wanted} attempts, {transferred(now):,.0f} KV tokens were transferred"
    )


async def leavers_cost_nothing(client: httpx.AsyncClient) -> str:
    """Clients that disconnect in mid-stream leave no running request and no KV block behind."""
    usage = (await _until_idle(client)).get(("kv_cache_usage", "decode"), 0.0)
    leave = asyncio.Event()
    leavers = [asyncio.create_task(_read_one_event_and_leave(client, seed, leave)) for seed in range(NUM_LEAVERS)]
    busy = await _until(
        client,
        lambda now: now.get(("num_requests_running", "decode"), 0) == NUM_LEAVERS,
        lambda now: f"{now.get(('num_requests_running', 'decode'))} of {NUM_LEAVERS} streams run on the decode replica",
    )
    leave.set()
    await asyncio.gather(*leavers)
    started_at_s = time.monotonic()
    now = (await _until_idle(client))[("kv_cache_usage", "decode")]
    if now > usage:
        raise CheckFailed(f"KV usage was {usage} and is {now} after {NUM_LEAVERS} clients left")
    took_s = time.monotonic() - started_at_s
    return (
        f"{NUM_LEAVERS} clients left in mid-stream: no running request, and KV usage back from "
        f"{busy[('kv_cache_usage', 'decode')]:.4f} to {now:.4f}, after {took_s:.1f} s"
    )


async def _read_one_event_and_leave(client: httpx.AsyncClient, seed: int, leave: asyncio.Event) -> None:
    rng = random.Random(seed)
    body = _body([rng.randrange(5, 1000) for _ in range(40)], max_tokens=4000, stream=True)
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                await leave.wait()
                return
    raise CheckFailed(f"a stream ended with HTTP {response.status_code} before its first event")


async def killed_engine_comes_back(client: httpx.AsyncClient) -> str:
    """SIGKILL of the only decode replica in mid-stream: the prefill replica runs the rest of the stream and what comes
    meanwhile, whole; and the pool serves again by itself.
    """
    pid = await _decode_pid(client)
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    before = await _token_ids(client, [5, 6, 7, 8])
    num_tokens, code = await _stream_through_a_kill(client, pid)
    if code or num_tokens != LONG_OUTPUT_TOKENS:
        raise CheckFailed(f"the stream through the kill has {num_tokens} tokens and ended with {code or '[DONE]'}")
    if await _token_ids(client, [5, 6, 7, 8]) != before:
        raise CheckFailed("without a decode replica the same prompt has another answer")
    started_at_s = time.monotonic()
    while time.monotonic() - started_at_s < RECOVERY_PATIENCE_S:
        if await _decode_pid(client) not in (0, pid) and (await _num_ready(client)).get("decode"):
            break
        await asyncio.sleep(POLL_S)
    else:
        raise CheckFailed(f"the decode pool was not ready again after {RECOVERY_PATIENCE_S:.0f} s")
    took_s = time.monotonic() - started_at_s
    if len(await _token_ids(client, [5, 6, 7, 8])) != OUTPUT_TOKENS:
        raise CheckFailed("the pool is ready again and does not serve")
    left = [each for each in family if psutil.pid_exists(each) and psutil.Process(each).status() != "zombie"]
    if left:
        raise CheckFailed(f"processes {left} of the killed engine are still there")
    return (
        f"SIGKILL of the decode replica: the prefill replica runs the stream to its last of {num_tokens:,} tokens, and "
        f"what comes meanwhile; another decode replica {took_s:.0f} s after that"
    )


async def _stream_through_a_kill(client: httpx.AsyncClient, pid: int) -> tuple[int, str]:
    """Kills the replica after the first event; returns how many tokens came, and the code of an error at their end."""
    num_tokens, killed = 0, False
    body = _body([9] * 20, LONG_OUTPUT_TOKENS, stream=True)
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return num_tokens, ""
            if line.startswith("data: "):
                event = msgspec.json.decode(line[6:])
                if "error" in event:
                    return num_tokens, str(event["error"]["code"])
                num_tokens += sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
                if not killed:
                    os.kill(pid, signal.SIGKILL)
                    killed = True
    raise CheckFailed("the stream through the kill ended without a verdict")


async def _num_ready(client: httpx.AsyncClient) -> dict[str, int]:
    """Replicas that are ready, by pool."""
    return dict((await client.get("/ready")).json()["replicas"])


async def _decode_pid(client: httpx.AsyncClient) -> int:
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            if sample.name == "spillway_replica_info" and sample.labels["pool"] == "decode":
                return int(sample.labels["pid"])
    return 0


async def _until_idle(client: httpx.AsyncClient) -> Samples:
    names = [
        ("num_requests_running", "decode"),
        ("num_requests_waiting", "decode"),
        ("num_requests_running", "prefill"),
    ]
    return await _until(
        client,
        lambda now: not any(now.get(name, 0) for name in names) and not now[("requests_open", "")],
        lambda now: f"requests are still running: { {name: now.get(name) for name in names} }",
    )


async def _until(
    client: httpx.AsyncClient, condition: Callable[[Samples], bool], complaint: Callable[[Samples], str]
) -> Samples:
    """Scrapes until the condition holds; replicas report twice a second."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not condition(now := await _scrape(client)):
        if time.monotonic() > give_up_at_s:
            raise CheckFailed(complaint(now))
        await asyncio.sleep(POLL_S)
    return now


async def _scrape(client: httpx.AsyncClient) -> Samples:
    samples: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            name = sample.name.removeprefix("spillway_").removeprefix("replica_")
            samples[(name, sample.labels.get("pool", ""))] = sample.value
    return samples


async def _token_ids(client: httpx.AsyncClient, prompt: list[int]) -> list[int]:
    response = await client.post("/v1/completions", json=_body(prompt, max_tokens=OUTPUT_TOKENS, stream=False))
    if response.status_code != 200:
        raise CheckFailed(f"HTTP {response.status_code} for a prompt of {len(prompt)} tokens: {response.text[:200]}")
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


def _body(prompt: list[int], max_tokens: int, *, stream: bool) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": stream,
        "return_token_ids": True,
    }


async def _run_checks(split: Deployment, unified: Deployment, console: Console) -> int:
    limits = httpx.Limits(max_connections=2 * NUM_LEAVERS)
    num_failed = 0
    async with (
        httpx.AsyncClient(base_url=split.url, timeout=120, limits=limits) as client,
        httpx.AsyncClient(base_url=unified.url, timeout=120) as reference,
    ):
        checks: list[Callable[[], Awaitable[str]]] = [
            lambda: same_tokens_as_unified(client, reference),
            lambda: leavers_cost_nothing(client),
            lambda: killed_engine_comes_back(client),
        ]
        for check in checks:
            try:
                console.print(f"[green]ok[/]    {await check()}", highlight=False)
            except (CheckFailed, httpx.HTTPError) as error:
                num_failed += 1
                console.print(f"[red]FAIL[/]  {type(error).__name__}: {error}", highlight=False)
    return num_failed


def main(arguments: list[str] | None = None) -> int:
    """Command line: 0 when every check passed, 1 when one failed, 2 when a deployment did not start or was stopped."""
    parser = argparse.ArgumentParser(prog="python -m deployments.smoke", description=__doc__.partition("\n")[0])
    parser.parse_args(arguments)
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, interrupt)
    console.print("starting local-vllm.yaml and unified-vllm.yaml: three engines, about two minutes on two cores")
    try:
        with ExitStack() as stack, ThreadPoolExecutor() as pool:
            configs = [CONFIGS / "local-vllm.yaml", CONFIGS / "unified-vllm.yaml"]
            contexts = [running(config, port) for config, port in zip(configs, filter(is_free, PORTS), strict=False)]
            split, unified = pool.map(stack.enter_context, contexts)
            num_failed = asyncio.run(_run_checks(split, unified, console))
    except KeyboardInterrupt:
        console.print("stopped")
        return 2
    except ServingError as error:
        console.print(f"[red]FAIL[/]  {error}", highlight=False)
        return 2
    console.print("[green]smoke: all checks passed[/]" if not num_failed else f"[red]smoke: {num_failed} failed[/]")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
