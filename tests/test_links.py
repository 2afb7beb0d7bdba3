"""Every local link of README and docs leads to a file, and its anchor to a heading there; every page is in the contents."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "artifacts").glob("*.md")]


def prose(page: Path) -> str:
    """The text without code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Addresses of the local links and pictures."""
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not re.match(r"[a-z]+:", link)]


def test_every_local_link_leads_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for link in links(page):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert not wrong


def test_every_page_is_in_the_contents() -> None:
    contents = set(links(ROOT / "docs" / "README.md"))
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in contents | {"README.md"}] == []
