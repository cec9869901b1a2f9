"""How many processes of one daemon are wanted, and the files of each."""

import pytest

from skylark.mqcommon.daemons.instances import instance_count, numbered
from skylark.mqcommon.errors import ConfigError


@pytest.mark.parametrize(("text", "count"), [("1", 1), (" 4 ", 4), ("auto", 3), ("AUTO", 3), ("64", 64)])
def test_a_number_or_auto_says_how_many(text: str, count: int) -> None:
    assert instance_count("brokerInstances", text, cores=3) == count


@pytest.mark.parametrize("text", ["0", "-1", "65", "many", "", "1.5"])
def test_other_values_are_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="proxyInstances"):
        instance_count("proxyInstances", text, cores=3)


def test_a_number_stands_before_the_suffix_of_a_file() -> None:
    assert numbered("/l/broker.log", 1) == "/l/broker-1.log"
    assert numbered("/l.d/broker", 2) == "/l.d/broker-2"
