"""Each ``pip install`` that a user reads works today: in docs, examples, conf files and scripts. Code makes its lines.

Skylark is in no package index yet, so a line names a clone or a wheel. Error texts: tests/mqcommon/test_extras.py.
"""

import configparser
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.daemons import ROOT
from scripts.packages import copy_tree, run_quietly
from skylark.mqcommon.version import VERSION

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = set(SETUP["options.extras_require"])
#: What a line may install of Skylark; group 1 has the extras.
FORMS = (
    re.compile(r"\.(?:\[(.+)\])?"),
    re.compile(r"skylark-mq(?:\[(.+)\])? @ file:///path/to/clone"),
    re.compile(rf"skylark_mq-{re.escape(VERSION)}-py3-none-any\.whl(?:\[(.+)\])?"),
)
# What a line may install once Skylark is in an index, where the paragraph says so.
LATER = ("in a package index", "软件包索引")
IN_AN_INDEX = re.compile(r"skylark-mq(?:\[(.+)\])?")
OTHER_PACKAGE = re.compile(r"[A-Za-z][\w.-]*(\[[\w,]+\])?([=<>~!]=?[\d.]+)?")
# A line ends at the end of its code, at a comment, at another command, or where a text in quotes ends.
LINE = re.compile(r"""pip install\s((?:"[^"\n]*"|'[^'\n]*'|[^\s`"'#;&|)]+|[ ](?![#&|]))*)""")


class Line(NamedTuple):
    """The arguments of a ``pip install``, the file, and the text around the line."""

    file: str
    arguments: str
    paragraph: str


def lines_in(file: str, text: str) -> Iterator[Line]:
    text = text.replace("\\\n", " ")
    for found in LINE.finditer(text):
        start, end = text.rfind("\n\n", 0, found.start()) + 1, text.find("\n\n", found.end())
        yield Line(file, found[1].strip(), text[start : None if end < 0 else end])


def all_lines() -> list[Line]:
    files = [file for pattern in ("*.md", "docs/**/*.md", "examples/**/*", "conf/**/*") for file in ROOT.glob(pattern)]
    # The sourced .sh files take extras as an argument, and users do not read them.
    files += [file for file in (ROOT / "scripts").iterdir() if file.is_file() and file.suffix != ".sh"]
    texts = {file.relative_to(ROOT).as_posix(): file for file in files if file.is_file() and file.suffix != ".pyc"}
    return [line for name, file in texts.items() for line in lines_in(name, file.read_text(encoding="utf-8"))]


def mistake_in(line: Line) -> str:
    """Why the line does not work, or is not in one of the forms; "" when it works."""
    if "'" in line.arguments:
        return "single quotes: not every shell knows them"
    says_later = any(words in line.paragraph for words in LATER)
    forms = [*FORMS, IN_AN_INDEX] if says_later else FORMS
    for argument in shlex.split(line.arguments):
        matches = [found for form in forms if (found := form.fullmatch(argument))]
        extras = set((matches[0][1] or "").split(",")) - {""} if matches else set()
        if extras - EXTRAS:
            return f"no such extra: {', '.join(sorted(extras - EXTRAS))}"
        is_other = OTHER_PACKAGE.fullmatch(argument) and not argument.lower().startswith(("skylark-mq", "skylark_mq"))
        in_image = line.file == "conf/container/Containerfile" and f" {argument}\n" in line.paragraph
        if not (matches or is_other or argument.startswith("-") or (in_image and argument == "/src")):
            return f"{argument}: none of the forms"
    return ""


def test_each_line_works_today() -> None:
    lines = all_lines()
    assert len(lines) > 20
    assert [(line.file, line.arguments, why) for line in lines if (why := mistake_in(line))] == []


def test_code_takes_its_lines_from_one_place() -> None:
    folders = [ROOT / "skylark", *(path.resolve() for path in (ROOT / "skylark").iterdir() if path.is_symlink())]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    assert [file.name for file in files if "pip install" in file.read_text(encoding="utf-8")] == ["extras.py"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('pip install "skylark-mq[celery]"', "none of the forms"),
        ("pip install skylark-mq", "none of the forms"),
        ("pip install 'skylark-mq[celery] @ file:///path/to/clone'", "single quotes"),
        ('pip install "skylark-mq[cellery] @ file:///path/to/clone"', "no such extra: cellery"),
        ('pip install "skylark-mq[celery] @ file:///somewhere"', "none of the forms"),
        ('pip install "/path/to/clone[celery]"', "none of the forms"),
        ("pip install skylark_mq-0.1.0-py3-none-any.whl", "none of the forms"),
        ('pip install -e ".[celery,nothing]"', "no such extra: nothing"),
    ],
)
def test_a_line_that_does_not_work_is_found(text: str, why: str) -> None:
    (line,) = lines_in("docs/x.md", text)
    assert why in mistake_in(line)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (
            'Type `pip install "skylark-mq[tls] @ file:///path/to/clone"`, and',
            '"skylark-mq[tls] @ file:///path/to/clone"',
        ),
        (".venv/bin/pip install .    # or another", "."),
        ("pip install --quiet . && rm -r x", "--quiet ."),
        (f'pip install "skylark_mq-{VERSION}-py3-none-any.whl[tls]"', f'"skylark_mq-{VERSION}-py3-none-any.whl[tls]"'),
        (
            'pip install "skylark-mq @ file:///path/to/clone" \\\n    psycopg',
            '"skylark-mq @ file:///path/to/clone"      psycopg',
        ),
        ("Once it is in a package index, `pip install skylark-mq` does the same.", "skylark-mq"),
    ],
)
def test_a_line_that_works_is_let_pass(text: str, arguments: str) -> None:
    (line,) = lines_in("docs/x.md", text)
    assert (line.arguments, mistake_in(line)) == (arguments, "")


@pytest.mark.nightly
@pytest.mark.process
def test_pip_takes_each_line_that_installs_skylark(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    lines = {line.arguments for line in all_lines() if re.search(r"^\.|\"\.|skylark-mq.* @ ", line.arguments)}
    for line in sorted(lines):
        arguments = shlex.split(line.replace("file:///path/to/clone", tmp_path.as_uri()))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check"]
        run_quietly([*command, *arguments], cwd=tmp_path)
