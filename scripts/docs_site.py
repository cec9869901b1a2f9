"""The site of docs/: zensical builds it strictly, and each link of each page is followed to its end.

`scripts/docs --site DIRECTORY` calls this. zensical judges links between Markdown files only, so images and links that
stand in HTML are judged here, in the pages that were made.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "zensical.toml"


class SiteError(Exception):
    """The site cannot be built, or has links that lead nowhere; the text names each of them."""


@dataclass
class HtmlPage(HTMLParser):
    """What a page refers to, and the anchors that it has."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)  # what a browser loads to show the page
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values and values.get("rel") != "canonical":
            self.fetched.append(values["href"])
        elif tag in ("img", "script") and "src" in values:
            self.fetched.append(values["src"])


def build_site(target: Path, root: Path = ROOT) -> None:
    """Write the site of ``root``'s docs/ to the directory ``target``, which must not exist or be empty.

    Raises SiteError when zensical warns of anything, or a link, an anchor or an image of a page does not exist.
    """
    if target.exists() and any(target.iterdir()):
        raise SiteError(f"{target} is not empty: give a new directory")
    with TemporaryDirectory(prefix="skylark-site-") as directory:
        # zensical writes beside its configuration: the site, and a cache that would outlive pages that moved
        copy = Path(directory)
        shutil.copy(root / CONFIG, copy / CONFIG)
        shutil.copytree(root / "docs", copy / "docs")
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        if run.returncode:
            # zensical 0.0.73 reads pages side by side, and once in 60 builds it missed pages that were there
            run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SiteError(_warnings(run.stdout + run.stderr) or f"{run.stdout}{run.stderr}")
        if problems := list(dead_links(copy / "site")):
            raise SiteError("\n".join(problems))
        shutil.copytree(copy / "site", target, dirs_exist_ok=True)


def dead_links(site: Path) -> Iterator[str]:
    """A line for each link, image, script or style sheet of the built ``site`` that is missing or of another host."""
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    pages = {name: _read(site / name) for name in files if name.endswith(".html")}
    for name, page in sorted(pages.items()):
        if name == "404.html":  # its links begin at the root of a host
            continue
        for link in dict.fromkeys(page.fetched):
            if urlsplit(link).netloc:
                yield f"{name}: {link} is of another host"
        for link in dict.fromkeys((*page.links, *page.fetched)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            end = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
            )
            if end not in files:
                end = posixpath.normpath(posixpath.join(end, "index.html"))
            if end not in files:
                yield f"{name}: {link} does not exist"
            elif parts.fragment and end in pages and unquote(parts.fragment) not in pages[end].anchors:
                yield f"{name}: {link} has no such anchor"


def _warnings(output: str) -> str:
    """zensical's warnings, a line for each: it draws them in colour, with a box around the line of the page."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", output)
    return "\n".join(f"{place}: {text}" for text, place in re.findall(r"Warning: (.*)\n.*\[ (\S+) \]", plain))


def _read(path: Path) -> HtmlPage:
    page = HtmlPage()
    page.feed(path.read_text(encoding="utf-8"))
    return page


if __name__ == "__main__":
    try:
        build_site(Path(sys.argv[1]))
    except SiteError as error:
        sys.exit(str(error))
    print(f"wrote {sys.argv[1]}/index.html")
