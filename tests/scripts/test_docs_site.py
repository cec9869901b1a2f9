"""The site of docs/ builds strictly, and each kind of dead link is found."""

from pathlib import Path

import pytest

from scripts.docs_site import SiteError, build_site, dead_links


def write_pages(site: Path, **pages: str) -> None:
    for name, text in pages.items():
        path = site / name / "index.html"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")


def test_links_of_all_kinds_that_lead_somewhere_are_no_problem(tmp_path: Path) -> None:
    write_pages(tmp_path, a='<h1 id="top"><a href="#top">a</a><a href="../b/#b%20c">b</a><img src="../b/x.svg">')
    write_pages(tmp_path, b='<p id="b c"><a href="../a/">a</a><a href="https://example.org/x#y">elsewhere</a>')
    (tmp_path / "b" / "x.svg").write_text("<svg/>", encoding="utf-8")
    assert list(dead_links(tmp_path)) == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="../gone/">', "a/index.html: ../gone/ does not exist"),
        ('<a href="#gone">', "a/index.html: #gone has no such anchor"),
        ('<a href="../b/#gone">', "a/index.html: ../b/#gone has no such anchor"),
        ('<img src="gone.png">', "a/index.html: gone.png does not exist"),
        ('<script src="//cdn.example.org/x.js">', "a/index.html: //cdn.example.org/x.js is of another host"),
        (
            '<link href="https://fonts.example.org/x.css">',
            "a/index.html: https://fonts.example.org/x.css is of another host",
        ),
    ],
)
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, html: str, problem: str) -> None:
    write_pages(tmp_path, a=html, b="<p>")
    assert list(dead_links(tmp_path)) == [problem]


@pytest.mark.process
def test_the_site_builds_without_a_warning_or_a_dead_link(tmp_path: Path) -> None:
    build_site(tmp_path / "site")
    assert "Skylark" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    with pytest.raises(SiteError, match="is not empty: give a new directory"):
        build_site(tmp_path / "site")


@pytest.mark.process
def test_a_link_between_pages_that_is_broken_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "Small"\n', encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("# Small\n\nA [page](gone.md), an [anchor](#gone).\n", encoding="utf-8")
    with pytest.raises(SiteError) as error:
        build_site(tmp_path / "site", tmp_path)
    assert str(error.value) == "index.md:3:10: page does not exist\nindex.md:3:33: anchor does not exist"
    assert not (tmp_path / "site").exists()
