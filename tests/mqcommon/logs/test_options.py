"""Levels of loggers."""

import logging
from collections.abc import Iterator

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.logs.options import change_levels, levels_text, parse_levels

ONE, OTHER = "skylark_test_levels.one", "skylark_test_levels.other"


@pytest.fixture
def root_level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def test_levels_are_read_and_written() -> None:
    levels = parse_levels(" broker.store = debug;;root=Warn; ")
    assert levels == {"broker.store": "DEBUG", "root": "WARNING"}
    assert parse_levels(levels_text(levels)) == levels
    assert parse_levels("skylark.broker.store=DEBUG;root=WARNING") == levels


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("broker", "LOGGER=LEVEL"),
        ("=DEBUG", "LOGGER=LEVEL"),
        ("a b=DEBUG", "LOGGER=LEVEL"),
        ("broker.=DEBUG", "LOGGER=LEVEL"),
        ("broker=LOUD", "DEBUG, INFO"),
        ("x" * 201 + "=DEBUG", "LOGGER=LEVEL"),
        (";".join(f"a{number}=INFO" for number in range(101)), "100 at most"),
    ],
)
def test_mistakes_are_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_levels(text)


def test_a_logger_that_is_no_longer_named_has_the_level_of_its_parent_again(root_level: None) -> None:
    change_levels("", f"{ONE}=DEBUG;root=ERROR")
    assert logging.getLogger(ONE).getEffectiveLevel() == logging.DEBUG
    assert logging.getLogger(OTHER).getEffectiveLevel() == logging.ERROR
    change_levels(f"{ONE}=DEBUG;root=ERROR", f"{OTHER}=WARNING")
    assert logging.getLogger(ONE).getEffectiveLevel() == logging.INFO
    assert logging.getLogger(OTHER).getEffectiveLevel() == logging.WARNING
    change_levels(f"{OTHER}=WARNING", "")
    assert logging.getLogger(OTHER).level == logging.NOTSET


@pytest.mark.parametrize("name", ["broker.store", "skylark.broker.store"])
def test_skylarks_loggers_may_be_named_without_their_first_word(name: str, root_level: None) -> None:
    logger = logging.getLogger("skylark.broker.store")
    change_levels("", f"{name}=DEBUG")
    assert logger.level == logging.DEBUG
    change_levels(f"{name}=DEBUG", "")
    assert logger.level == logging.NOTSET
