"""The live page on Ray Serve, in a real browser: it shows what happens, and sends what it is told to."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from deployments.export.live_feed import MAX_WATCHERS
from tests.browser import DESKTOP, PHONE, Visit, visit
from tests.deployments.live_cluster import RayNodes, application, emulated_args
from tests.waiting import until

pytestmark = pytest.mark.ray

APPLICATION = "watched"
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 8}
PATIENCE_MS = 20_000
LOOKS: dict[str, dict[str, Any]] = {
    "desktop": {"size": DESKTOP},
    "phone": {"size": PHONE},
    "dark": {"size": DESKTOP, "scheme": "dark"},
    "dark-phone": {"size": PHONE, "scheme": "dark"},
}
TEXT = "h1, h2, h3, p, td, th, dt, dd, label, button, a, li > span, .chip, .notice"
"""Everything that is to be read."""


def application_args() -> dict[str, Any]:
    """``emulated.yaml`` with one replica, endless answers, and two lanes with SLOs."""
    args = emulated_args()
    args["engine"]["emulation"]["mean_output_tokens"] = 1_000_000
    short = {"name": "short", "prompt_tokens": {"below": 1000}, "pools": ["unified"], "ttft_slo_s": 60.0}
    long = {"name": "long", "prompt_tokens": {"at_least": 1000}, "pools": ["unified"], "ttft_slo_s": 0.001}
    args["policies"] = {"planning": "always_unified", "shedding": "pid", "lanes": {"lanes": [short, long]}}
    return args


@pytest.fixture(scope="module")
def url(nodes: RayNodes) -> Iterator[str]:
    with application(nodes, APPLICATION, application_args()) as live:
        yield live.url


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kept_open(browser: Browser, url: str) -> AsyncIterator[Visit]:
    """A page that was opened before everything else."""
    async with visit(browser, url) as found:
        await is_live(found.page)
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def visited(browser: Browser, url: str) -> AsyncIterator[Visit]:
    """The page, with a first state."""
    async with visit(browser, url) as found:
        await is_live(found.page)
        yield found


async def is_live(page: Page) -> None:
    await expect(page.locator("#status")).to_have_text("live", timeout=PATIENCE_MS)


async def ask(url: str, **changes: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{url}/v1/completions", json={**BODY, **changes})


async def state_of(url: str, headers: dict[str, str] | None = None) -> bytes:
    """The first that the page would be told."""
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{url}/live/events", headers=headers) as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            return line.removeprefix("data: ").encode()
    raise AssertionError("there was no state")


async def comes_in(url: str) -> bool:
    """Whether one more may watch, before long."""
    async with httpx.AsyncClient(timeout=60) as client:
        for _ in range(500):
            async with client.stream("GET", f"{url}/live/events") as answer:
                if answer.status_code == 200:
                    return True
    return False


async def test_there_are_so_many_watchers_and_those_who_leave_make_room(url: str) -> None:
    """Comes first, while no page is open."""
    is_over, is_seen = asyncio.Event(), asyncio.Semaphore(0)

    async def watch(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", f"{url}/live/events") as answer:
            async for _ in answer.aiter_lines():
                is_seen.release()
                await is_over.wait()
                return

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        watches = [asyncio.create_task(watch(client)) for _ in range(MAX_WATCHERS)]
        for _ in watches:
            await is_seen.acquire()
        refused = await client.get(f"{url}/live/events")
        is_over.set()
        await asyncio.gather(*watches)

    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "too_many_watchers")
    assert int(refused.headers["retry-after"]) > 0
    assert await comes_in(url), "nobody made room"


async def test_it_says_what_is_deployed_and_that_engines_are_emulated(kept_open: Visit) -> None:
    page = kept_open.page

    await expect(page.locator("#model")).to_have_text("tiny-llama")
    await expect(page.locator("#emulated")).to_contain_text("Emulated engines. Their times are those of the profile")
    await expect(page.locator("#pools .pool")).to_have_count(1)
    await expect(page.locator("#pools")).to_contain_text("1 of 1 up")
    await expect(page.locator("#pools [role=meter]")).to_have_count(1)
    await expect(page.locator("#policies")).to_contain_text("always_unified")
    await expect(page.locator("#lanes tr")).to_have_count(2)
    assert await page.locator("#key").is_hidden()
    assert kept_open.complaints == []
    assert {re.sub(r".*/watched/?", "", each) for each in kept_open.requests if each.startswith("http")} == {
        "",
        "live/events",
    }


async def test_numbers_follow_what_others_ask(visited: Visit, url: str) -> None:
    """Rates compare two states, so requests come until they are seen."""
    page = visited.page
    answered, lane = page.locator("#tile-requests [data-figure]"), page.locator("#lanes tr")

    for _ in range(40):
        assert (await ask(url)).status_code == 200
        assert (await ask(url, prompt=[7] * 1200)).status_code == 200
        if await lane.nth(1).locator("strong").count() and not (await answered.inner_text()).startswith("0.0"):
            break

    await expect(answered).to_have_text(re.compile(r"^\d+\.\d answered/s"))
    await expect(page.locator("#tile-ttft [data-figure]")).to_have_text(re.compile(r"^≈ [\d.]+ ms p50"))
    await expect(page.locator("#tile-tokens .spark path")).to_have_attribute("d", re.compile(r"^M.*L"))
    await expect(lane.nth(0).locator("strong")).to_have_text("100 %")
    await expect(lane.nth(1).locator("strong")).to_have_text("0 %")
    bounds = page.locator("#bounds tr")
    await expect(bounds).to_have_count(2)
    for name in ("short", "long"):
        helps = re.compile(r"(engine|queue|prefill|memory|front end|client)\s*\S+")
        await expect(bounds.filter(has_text=name)).to_contain_text(helps)
    assert visited.complaints == []


async def test_the_box_sends_a_prompt_and_shows_its_tokens_and_where_its_time_went(visited: Visit, url: str) -> None:
    page = visited.page
    headers = {"x-spillway-latency-budget": "1"}
    async with httpx.AsyncClient(timeout=60) as client:
        told = await client.post(f"{url}/v1/completions", json=BODY, headers=headers)

    await page.fill("#prompt", "Tell me about weirs.")
    await page.fill("#max-tokens", "24")
    await page.click("#send")

    await expect(page.locator("#answer")).to_have_text(re.compile(r"\w+ \w+"), timeout=PATIENCE_MS)
    facts = page.locator("#facts")
    await expect(facts).to_be_visible(timeout=PATIENCE_MS)
    await expect(facts).to_contain_text(told.headers["x-spillway-gateway"])
    await expect(facts).to_contain_text(re.compile(r"First token\s*\d+(\.\d+)? ms"))
    stages = await page.locator("#budget-stages tr td:first-child").all_inner_texts()
    known = [name.replace("_", " ") for name in told.json()["spillway"]["latency_budget_s"]]
    assert stages == [name for name in known if name in stages], "in the order in which a request comes to them"
    assert {"parse", "prefill", "decode"} <= set(stages)
    await expect(page.locator("#budget .stack")).to_have_count(2)
    await expect(page.locator("#budget .stack").last.locator("i")).to_have_count(len(stages))
    assert visited.complaints == []


async def test_several_at_once_are_all_told_of(visited: Visit) -> None:
    page = visited.page

    await page.fill("#max-tokens", "4")
    await page.click("#burst")

    await expect(page.locator("#burst-results div").filter(has_text="first token")).to_have_count(
        5, timeout=PATIENCE_MS
    )
    await expect(page.locator("#send")).to_be_enabled()


async def test_an_answer_that_is_stopped_gives_its_place_away(visited: Visit, url: str) -> None:
    page = visited.page
    await page.fill("#max-tokens", "60000")
    await page.click("#burst")
    await expect(page.locator("#burst-results div").filter(has_text="so far")).to_have_count(5, timeout=PATIENCE_MS)

    await page.click("#stop")

    await expect(page.locator("#burst-results div").filter(has_text="stopped")).to_have_count(5)
    await expect(page.locator("#tile-requests [data-aside]")).to_contain_text(", 0 open", timeout=PATIENCE_MS)


async def test_what_was_refused_or_failed_is_shown_with_its_reason(visited: Visit, url: str) -> None:
    page = visited.page

    await page.fill("#max-tokens", "9999999")
    await page.click("#send")
    failed = await ask(url, max_tokens=50_000, ignore_eos=True, timeout=0.3)

    assert failed.status_code == 504
    await expect(page.locator("#trouble")).to_contain_text("400 context_length_exceeded: the context is")
    rows = page.locator("#refusals tr")
    await expect(rows.filter(has_text="context_length_exceeded")).to_contain_text("invalid", timeout=PATIENCE_MS)
    await expect(rows.filter(has_text="deadline_exceeded")).to_contain_text("standard", timeout=PATIENCE_MS)
    await expect(rows.filter(has_text="deadline_exceeded")).to_contain_text("short")
    await expect(page.locator("#reasons")).to_contain_text("deadline_exceeded")
    (complaint,) = visited.complaints
    assert "400" in complaint, "the browser's own word about the answer that was refused"


@pytest.mark.parametrize("look", LOOKS)
async def test_it_can_be_read_on_every_screen(browser: Browser, url: str, look: str) -> None:
    await asyncio.gather(ask(url), ask(url, max_tokens=9_999_999))
    async with visit(browser, url, **LOOKS[look]) as visited:
        await is_live(visited.page)
        await visited.page.click("#send")
        await expect(visited.page.locator("#facts")).to_be_visible(timeout=PATIENCE_MS)
        await expect(visited.page.locator("#refusals tr").first).to_be_visible()
        await visited.keep(f"live-page-{look}")

        assert not await visited.scrolls_sideways()
        assert await visited.texts_that_touch() == []
        assert await visited.least_contrast(TEXT) >= 4.5
        assert visited.complaints == []


async def test_neither_prompts_nor_tenants_are_told_to_who_watches(url: str) -> None:
    headers = {"x-tenant-id": "acme-of-nowhere", "x-session-id": "session-of-acme"}
    async with httpx.AsyncClient(timeout=60) as client:
        body = {**BODY, "prompt": "the-secret-prompt", "timeout": 0.0001}
        assert (await client.post(f"{url}/v1/completions", json=body, headers=headers)).status_code == 504

    state = await state_of(url)

    assert b"deadline_exceeded" in state
    for secret in (b"acme", b"secret-prompt"):
        assert secret not in state


async def test_a_page_that_stays_open_watches_again_whenever_a_watch_is_over(kept_open: Visit) -> None:
    await until(lambda: sum(each.endswith("/live/events") for each in kept_open.requests) > 1, "it watches again")
    await is_live(kept_open.page)
