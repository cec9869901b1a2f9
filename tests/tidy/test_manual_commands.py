"""Each command of Skylark that the manual shows exists, with its options; so does each key that a page tells to set."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from skylark.broker.cli import main as broker
from skylark.cli.main import skylark
from skylark.mqadmin.cli import mqadmin
from skylark.mqconsole.cli import main as mqconsole
from skylark.mqproxy.cli import main as mqproxy
from skylark.namesrv.cli import main as namesrv
from skylark.namesrv.controller.cli import main as controller
from tests.tidy.tree import ROOT

COMMANDS: dict[str, click.Command] = {
    "broker": broker,
    "controller": controller,
    "mqadmin": mqadmin,
    "mqconsole": mqconsole,
    "mqproxy": mqproxy,
    "namesrv": namesrv,
    "skylark": skylark,
}
OF_BROKER = broker.list_commands(click.Context(broker))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
BLOCK = re.compile(r"^```(?:sh|text)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# A key of a conf file with its value, in a sentence or at the start of a line.
SET = re.compile(r"(?:`|^)([a-z]+[A-Z]\w+)=", re.MULTILINE)
# What stands with a value in docs/operate, and is no key: an option of Spark, a setting of groups, a column of mqadmin.
NO_KEYS = {"commitOffsets", "consumeEnable", "trackType"}
# What ends a command in a line of a shell: a comment, a pipe, another command.
END = re.compile(r"\s#|\s&&?(?:\s|$)|[;|]")


def lines_of(text: str) -> Iterator[str]:
    """The lines of a page's shell blocks, and the pieces of code in its sentences and tables."""
    for block in BLOCK.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    yield from (code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", FENCED.sub("", text)))


def commands_of(line: str) -> Iterator[list[str]]:
    """The words of each command of Skylark in a line; a name alone is no command."""
    for piece in END.split(line):
        # A prompt, variables of the environment, and the folder of the systemd units.
        typed = re.sub(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:/opt/skylark/bin/)?", "", piece)
        name, _, rest = typed.partition(" ")
        first = rest.strip().partition(" ")[0]
        # Lines of logs begin with the word broker, too.
        is_command = name in COMMANDS and (name != "broker" or first.startswith("-") or first in OF_BROKER)
        if first and is_command and rest.count("'") % 2 == rest.count('"') % 2 == 0:
            yield shlex.split(typed)


def mistake_in(words: list[str]) -> str:
    """The first name that does not exist in a command's words; "" when all exist."""
    command, rest = COMMANDS[words[0]], words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            return rest[0]
        command, rest = found, rest[1:]
    options = {"--help"}
    for parameter in command.get_params(click.Context(command)):
        options.update(parameter.opts, parameter.secondary_opts)
    named = [word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)]
    return next((name for name in named if name not in options), "")


def test_commands_and_options_of_the_manual_exist() -> None:
    found = [
        (page.relative_to(ROOT).as_posix(), words)
        for page in PAGES
        for line in lines_of(page.read_text(encoding="utf-8"))
        for words in commands_of(line)
    ]
    assert len(found) > 250
    assert [(page, shlex.join(words), mistake) for page, words in found if (mistake := mistake_in(words))] == []


def test_keys_that_an_operator_is_told_to_set_exist() -> None:
    keys = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "reference" / "conf.md").read_text(encoding="utf-8")))
    pages = (ROOT / "docs" / "operate").glob("*.md")
    named = {(page.name, key) for page in pages for key in SET.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 80
    assert {(page, key) for page, key in named if key not in keys | NO_KEYS} == set()


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("mqadmin topicStatuss -t orders", "topicStatuss"),
        ("$ mqadmin topicStatus --topics orders", "--topics"),
        ("export A=b; B=c mqadmin topicStatus -z orders | head", "-z"),
        ("mqadmin --tls-config tls.properties", "--tls-config"),
        ("broker verifyStore ~/store --repare", "--repare"),
        ("namesrv -c namesrv.conf & broker --name-srv 127.0.0.1:9876", "--name-srv"),
        ("skylark send orders tea --tag drinks    # --tagg", ""),
    ],
)
def test_a_mistake_in_a_line_is_found(line: str, mistake: str) -> None:
    assert [found for words in commands_of(line) if (found := mistake_in(words))] == ([mistake] if mistake else [])
