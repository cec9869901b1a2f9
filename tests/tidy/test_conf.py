"""Every shipped conf file loads, and says nothing that has no effect."""

from pathlib import Path

import pytest

from broker.options import BrokerOptions
from common.options import load_conf
from namesrv.options import NamesrvOptions
from tests.tidy.tree import ROOT

# RocketMQ calls a broker's file in a set .properties
CONF = sorted(path for path in (ROOT / "conf").rglob("*") if path.suffix in (".conf", ".properties"))


@pytest.mark.parametrize("path", CONF, ids=[path.relative_to(ROOT).as_posix() for path in CONF])
def test_conf_file_loads(path: Path) -> None:
    warnings: list[str] = []
    cls = NamesrvOptions if path.name.startswith("namesrv") else BrokerOptions
    load_conf(cls, path, environ={}, warnings=warnings)
    assert warnings == []


def test_the_expected_conf_files_are_there() -> None:
    names = {path.relative_to(ROOT / "conf").as_posix() for path in CONF}
    assert {"namesrv.conf", "broker.conf"} <= names
    assert {"2m-noslave/broker-a.properties", "2m-noslave/broker-b.properties"} <= names
