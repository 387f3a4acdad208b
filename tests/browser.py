"""A real browser for pages, and what is asked of every page: nothing on the console, no text on text, enough contrast.

The browser is whichever Chromium there is: ``apt-get install chromium-headless-shell`` brings one of 100 MB, and
``SPILLWAY_BROWSER`` names another. Tests that need one are skipped where there is none.
"""

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
VARIABLE = "SPILLWAY_BROWSER"
ARTEFACTS = Path(__file__).parents[1] / ".run" / "artifacts"
"""Where screenshots go."""
DESKTOP, PHONE, PAPER = (1280, 900), (390, 844), (718, 1000)
"""Widths and heights in CSS pixels; the last is A4 within its margins."""

PAINT_TRIES = 3
NEXT_FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
MOST_PIXELS = 6000
"""Of a picture's height; Chromium may refuse to paint more at a time."""

_TEXTS_THAT_TOUCH = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || ["STYLE", "SCRIPT", "title"].includes(parent.tagName)) continue;
    if (!parent.checkVisibility({visibilityProperty: true})) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width > 3 && box.height > 3) found.push({text: node.data.trim(), node, box});
    }
  }
  found.sort((one, other) => one.box.top - other.box.top);
  const touching = [];
  const slack = 1.5;
  found.forEach((one, index) => {
    for (const other of found.slice(index + 1)) {
      if (other.box.top > one.box.bottom - slack) break;
      const apart = other.box.left > one.box.right - slack || one.box.left > other.box.right - slack;
      const below = Math.min(one.box.bottom, other.box.bottom) - other.box.top <= slack;
      if (!apart && !below && one.node !== other.node) touching.push(`${one.text} / ${other.text}`);
    }
  });
  return touching;
}"""
_CONTRASTS = """(selector) => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    return pen.getImageData(0, 0, 1, 1).data;
  };
  const luminance = (color) => {
    const parts = [...rgba(color)].slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
    return "white";
  };
  return [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility()).map((each) => {
    const style = getComputedStyle(each);
    const color = each instanceof SVGElement ? style.fill : style.color;
    const pair = [luminance(color), luminance(behind(each))].sort((one, other) => other - one);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  });
}"""


class Visit:
    """A page that is open in the browser.

    Args:
        page: The browser's own handle.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        """Whatever the page wrote to the console, and every exception in it."""
        self.requests: list[str] = []
        """Addresses that it asked for, its own included."""
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))

    async def texts_that_touch(self) -> list[str]:
        """Pairs of visible texts of which one lies on the other."""
        found: list[str] = await self.page.evaluate(_TEXTS_THAT_TOUCH)
        return found

    async def least_contrast(self, selector: str) -> float:
        """The lowest ratio of luminance between text and what is behind it, by the formula of WCAG; 4.5 is enough."""
        found: list[float] = await self.page.evaluate(_CONTRASTS, selector)
        return min(found)

    async def background(self) -> str:
        """The body's background as ``rgb(...)``."""
        color: str = await self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return color

    async def count(self, selector: str) -> int:
        """How many visible elements there are."""
        return await self.page.locator(selector).filter(visible=True).count()

    async def scrolls_sideways(self) -> bool:
        """Whether the page is wider than the window."""
        is_wider: bool = await self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        return is_wider

    async def keep(self, name: str) -> Path:
        """Saves a picture of the page, down to ``MOST_PIXELS``, among the artefacts."""
        path = ARTEFACTS / f"{name}.png"
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        before = self.page.viewport_size
        assert before is not None
        height = await self.page.evaluate("document.documentElement.scrollHeight")
        await self.page.set_viewport_size({"width": before["width"], "height": min(height, MOST_PIXELS)})
        await self._paint(path)
        await self.page.set_viewport_size(before)
        return path

    async def _paint(self, path: Path) -> None:
        """Chromium on a busy machine now and then has no picture to give, and gives it when it is asked again."""
        for _ in range(PAINT_TRIES - 1):
            await self.page.evaluate(NEXT_FRAME)
            try:
                await self.page.screenshot(path=path)
            except PlaywrightError as error:
                print(f"no picture {path.name}: {error}")
            else:
                return
        await self.page.screenshot(path=path)


@asynccontextmanager
async def visit(
    browser: Browser,
    address: str,
    size: Sequence[int] = DESKTOP,
    *,
    scheme: Literal["light", "dark"] = "light",
    media: Literal["screen", "print"] = "screen",
) -> AsyncIterator[Visit]:
    """Opens a page, and closes it in the end.

    Args:
        browser: The fixture ``browser``.
        address: Such as ``file:///tmp/report.html`` or ``http://127.0.0.1:8000/``.
        size: Width and height of the window, CSS pixels.
        scheme: What the reader prefers.
        media: Whether it is laid out for a screen or for paper.
    """
    viewport: Any = {"width": size[0], "height": size[1]}
    context = await browser.new_context(viewport=viewport, color_scheme=scheme)
    try:
        visited = Visit(await context.new_page())
        await visited.page.emulate_media(media=media)
        await visited.page.goto(address)
        yield visited
    finally:
        await context.close()


def program() -> str | None:
    """The browser's file; ``None`` where there is none."""
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, PROGRAMS)), None)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium, for the tests of a file."""
    found = program()
    if found is None:
        pytest.skip(f"no browser: none of {PROGRAMS}; apt-get install {PROGRAMS[0]}, or set {VARIABLE} to a Chromium")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # which Chromium refuses to root
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=found, args=[*sandbox, "--disable-gpu"])
        yield launched
        await launched.close()
