"""The report in a real browser: drawn, readable on every kind of screen and on paper, and silent."""

from typing import Any

import pytest
from playwright.async_api import Browser

from loadtests.report import main
from tests.browser import DESKTOP, PAPER, PHONE, visit
from tests.loadtests.saved_runs import save, save_simulated

HOSTILE = "<script>document.title = 'taken over'</script><img src=x onerror=alert(1)>"
TEXTS = "p, h1, h2, h3, h4, td, th, li, figcaption, .badge, summary, .plot text"
LOOKS: dict[str, dict[str, Any]] = {
    "desktop": {"size": DESKTOP},
    "phone": {"size": PHONE},
    "dark": {"size": DESKTOP, "scheme": "dark"},
    "dark-phone": {"size": PHONE, "scheme": "dark"},
    "print": {"size": PAPER, "media": "print", "scheme": "dark"},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with everything in it: simulated and live runs, baselines, rates, lanes, stages, and an invalid run."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(1, 6):
        save_simulated(root / f"policy-{seed}", seed=seed)
        save_simulated(root / f"by-count-{seed}", variant="by-count", seed=seed, slowness=2.0)
    save(root / "live", slowness=1.1)
    for number, rate in enumerate((0.25, 0.5, 1.0)):
        save(
            root / f"lanes-{number}", scenario="many-rates", rate_fraction=rate, number=int(4000 * rate), slowness=rate
        )
    problem = "requests were sent 80.0 ms late (99th percentile): give the client a core of its own"
    save(
        root / "hostile",
        scenario="hostile",
        description=HOSTILE,
        verdict="INVALID",
        number=200,
        problems=(problem, HOSTILE),
    )
    output = root / "report.html"
    assert main([str(root), "--output", str(output), "--title", f"Everything {HOSTILE}"]) == 2
    return output.as_uri()


@pytest.mark.parametrize("look", LOOKS)
async def test_a_report_is_drawn_and_readable(browser: Browser, address: str, look: str) -> None:
    async with visit(browser, address, **LOOKS[look]) as visited:
        await visited.keep(f"report-{look}")

        assert visited.complaints == []
        assert visited.requests == [address], "a report needs nothing but itself"
        assert await visited.page.title() == f"Everything {HOSTILE}: INVALID"
        assert await visited.count(".plot .series path") > 40
        assert await visited.count(".plot") == await visited.count("figcaption")
        assert await visited.texts_that_touch() == []
        assert await visited.least_contrast(TEXTS) >= 4.5
        assert not await visited.scrolls_sideways()


async def test_on_paper_it_is_black_on_white_even_for_those_who_prefer_the_dark(browser: Browser, address: str) -> None:
    async with visit(browser, address, PAPER, media="print", scheme="dark") as visited:
        assert await visited.background() == "rgb(255, 255, 255)"
        assert (await visited.page.pdf(format="A4")).startswith(b"%PDF")


async def test_what_is_dark_on_a_screen_is_dark(browser: Browser, address: str) -> None:
    async with visit(browser, address, scheme="dark") as visited:
        assert await visited.background() == "rgb(18, 20, 23)"


async def test_formulas_unfold(browser: Browser, address: str) -> None:
    async with visit(browser, address) as visited:
        meaning = visited.page.get_by_text("logical requests within their SLO / offered", exact=True)
        assert not await meaning.is_visible()
        await visited.page.get_by_text("Formulas of all metrics").click()

        assert await meaning.is_visible()
        assert await visited.texts_that_touch() == []
