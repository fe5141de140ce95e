"""Each relative link and anchor of the pages leads to a file or a heading. No network is used."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(path):
    """Return the text of a page without its code."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(path):
    """Return the anchors of a page's headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def broken(page):
    """Yield one line per link that leads nowhere."""
    for link in LINK.findall(prose(page)):
        if "://" in link:
            if not re.fullmatch(r"https?://[\w.-]+\.\w+(/\S*)?", link):
                yield f"{link}: not a web address"
            continue
        name, _, anchor = link.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in anchors(file):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    assert not list(broken(page))


def test_finds_broken_links(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n[a](absent.md) [b](#none) [c](http:/x) [d](#a) `[e](code.md)`\n")
    assert [fault.split(":")[0] for fault in broken(page)] == ["absent.md", "#none", "http"]
