"""Links lead somewhere, commands exist, and policies can be configured as pages say."""

import importlib.util
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.config.policies import PoliciesConfig
from policies.catalog import CATALOG, resolve

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MAX_README_LINES = 250


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links_of(page: Path) -> list[str]:
    """Relative ones; those to other sites are not ours to check."""
    found: list[str] = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return [each for each in found if not re.match(r"[a-z]+:", each)]


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in plain)


def is_broken(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors_of(target)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert [link for link in links_of(page) if is_broken(page, link)] == []


@pytest.mark.parametrize("link", ["nowhere.md", "README.md#no-such-heading", "#no-such-heading"])
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    assert is_broken(ROOT / "README.md", link)


def test_the_map_names_every_page() -> None:
    plan = ROOT / "docs" / "README.md"
    named = {(plan.parent / link.partition("#")[0]).resolve() for link in links_of(plan)}
    pages = {page for page in PAGES if page.is_relative_to(plan.parent) and page != plan}
    in_lists_of_their_own = {"adr", "proofs"}
    wanted = {relative(page) for page in pages if page.parent.name not in in_lists_of_their_own}
    assert wanted <= {relative(page) for page in named}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


def test_code_names_pages_that_exist() -> None:
    files = [
        each
        for folder in ("policies", "routing", "engines", "cluster", "deployments", "loadtests")
        for each in (ROOT / folder).rglob("*")
        if each.suffix in {".py", ".yaml", ".yml", ".html", ".json"}
    ]
    named = {
        (relative(each), page)
        for each in [*files, ROOT / "Makefile"]
        for page in re.findall(r"\bdocs/[\w/-]+\.md", each.read_text(encoding="utf-8"))
    }
    assert {(file, page) for file, page in named if not (ROOT / page).exists()} == set()


def blocks_of(page: Path, language: str) -> list[str]:
    """Fenced blocks, without what they are indented by."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(each) for each in found]


def policies_in(node: object) -> Iterator[dict[str, Any]]:
    """Whatever stands under ``policies`` and answers questions, however deep."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "policies" and isinstance(value, dict):
                yield value
            yield from policies_in(value)
    elif isinstance(node, list):
        for each in node:
            yield from policies_in(each)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_policies_in_a_page_can_be_configured(page: Path) -> None:
    for block in blocks_of(page, "yaml"):
        for policies in policies_in(yaml.safe_load(block)):
            spec = PoliciesConfig.model_validate({"planning": "always_unified", **policies}).spec()
            for question, answers in CATALOG.items():
                resolve(question, getattr(spec, question).name, answers)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE)) <= set(targets)
    ours = set(re.findall(r"python -m ((?:cluster|deployments|engines|loadtests|routing)[\w.]*\w)", text))
    assert {module for module in ours if importlib.util.find_spec(module) is None} == set()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_python_in_a_page_compiles(page: Path) -> None:
    for block in blocks_of(page, "python"):
        compile(block, relative(page), "exec")
