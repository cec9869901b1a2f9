"""How many processes of one daemon are wanted, and the files of each."""

import os
from pathlib import Path

import pytest

from skylark.mqcommon.daemons import instances
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


@pytest.mark.parametrize(
    ("quota", "count"),
    [("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 4), ("max 100000", 4), ("", 4), (None, 4)],
)
def test_auto_counts_the_cores_that_the_container_may_use(
    quota: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(instances, "_CGROUP", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert instances.usable_cores() == count
