"""The pytest fixtures, as a project that uses them has them."""

import subprocess
import sys
from pathlib import Path

import pytest

from skylark import Message, Producer, blocking
from skylark.sdk.testing import Cluster, cluster, cluster_fixture

pair = cluster_fixture(brokers=2, options={"autoCreateTopicEnable": False}, scope="module")

__all__ = ["cluster"]  # a fixture is found by its name in the module


def test_a_plain_test(cluster: Cluster) -> None:
    with blocking.Producer(cluster.nameserver) as producer:
        assert producer.send(Message("orders", b"x")).queue.broker_name == "broker-a"


async def test_a_trio_test(cluster: Cluster) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message("orders", b"x"))


def test_a_cluster_that_several_tests_share(pair: Cluster) -> None:
    assert len(pair.brokers) == 2
    pair.create_topic("first", queues=1)


def test_a_shared_cluster_keeps_what_others_made(pair: Cluster) -> None:
    pair.create_topic("second", queues=1)
    with blocking.Producer(pair.nameserver) as producer:
        assert len(producer.queues("second")) == 2


def test_the_folder_imports_only_what_is_used() -> None:
    """Without pytest for a cluster, without daemons for a producer."""
    program = (
        "import sys, skylark.sdk.testing, skylark.sdk.producer.producer; "
        "assert not {'pytest', 'skylark.broker', 'skylark.namesrv'} & set(sys.modules); "
        "from skylark.testing import Cluster; "
        "assert {'pytest', 'skylark.broker'} & set(sys.modules) == {'skylark.broker'}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(ImportError, match="cannot import name 'clusters'"):
        exec("from skylark.sdk.testing import clusters", {})


def test_a_conftest_needs_one_line(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from skylark.sdk.testing import cluster\n")
    (tmp_path / "test_it.py").write_text("def test_it(cluster):\n    assert cluster.nameserver\n")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path)
    assert run.returncode == 0
