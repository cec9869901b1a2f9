"""The reference names every command and every option."""

import re

import click

from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.reference import markdown


def test_every_command_and_option_is_there() -> None:
    sections = markdown(mqadmin).split("\n### ")
    shared, by_name = sections[0], {section.split("\n")[0]: section for section in sections[1:]}
    assert sorted(by_name) == sorted(mqadmin.commands)
    for name, command in mqadmin.commands.items():
        for param in command.params:
            if isinstance(param, click.Option):
                rows = [row_of(param, text) for text in (by_name[name], shared)]
                assert sorted(rows) == [False, True], (name, param.opts)


def row_of(param: click.Option, section: str) -> bool:
    """Whether a section has a row of the option."""

    def is_named(cell: str) -> bool:
        return re.search(rf"{param.opts[-1]}(?![A-Za-z])", cell) is not None

    return any(line.startswith(("| `", "| <code>")) and is_named(line.split(" | ")[0]) for line in section.splitlines())


def test_options_of_all_are_told_once() -> None:
    assert markdown(mqadmin).count("--namesrvAddr") == 1


def test_tables_are_whole() -> None:
    for line in markdown(mqadmin).splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 3
