"""What is asked of every page finds what it is there to find."""

from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.browser import DESKTOP, PHONE, visit


@pytest.fixture
def page_of(tmp_path: Path) -> str:
    """A page with one fault of each kind, and beside each what is right."""
    path = tmp_path / "page.html"
    path.write_text(
        """<!doctype html><meta name="viewport" content="width=device-width">
        <style>body {margin: 0; background: white} p {margin: 0; line-height: 20px}</style>
        <p class="fine">one line</p><p class="fine">another line</p><p style="display: none">not there</p>
        <p style="color: #aaa" class="pale">pale</p>
        <p style="position: absolute; top: 200px">below</p><p style="position: absolute; top: 205px">above</p>
        <svg width="900" height="100" viewBox="0 0 900 100">
        <text x="0" y="20">left</text><text x="10" y="22">right</text>
        <text x="0" y="60" fill="#ddd" class="drawn">pale</text>
        </svg><img src="nowhere.png"><script>console.error("broken"); throw new Error("lost")</script>""",
        encoding="utf-8",
    )
    return path.as_uri()


async def test_texts_on_one_another_are_found(browser: Browser, page_of: str) -> None:
    async with visit(browser, page_of) as visited:
        assert sorted(await visited.texts_that_touch()) == ["below / above", "left / right"]


async def test_pale_text_is_found(browser: Browser, page_of: str) -> None:
    async with visit(browser, page_of, DESKTOP) as visited:
        assert await visited.least_contrast(".fine") == pytest.approx(21.0)
        assert await visited.least_contrast("p") == pytest.approx(2.32, abs=0.01)
        assert await visited.least_contrast("text.drawn") < 1.5


async def test_what_a_page_complains_of_and_asks_for_is_noted(browser: Browser, page_of: str) -> None:
    async with visit(browser, page_of) as visited:
        assert "error: broken" in visited.complaints
        assert any(each.startswith("exception:") and "lost" in each for each in visited.complaints)
        assert len(visited.requests) == 2


async def test_a_page_that_is_too_wide_for_a_phone_is_found(browser: Browser, page_of: str) -> None:
    async with visit(browser, page_of, PHONE) as visited:
        assert await visited.scrolls_sideways()
    async with visit(browser, page_of) as visited:
        assert not await visited.scrolls_sideways()
        assert await visited.count("p") == 5
