"""A cluster for tests: NameServers and brokers inside the test process, with real sockets and faults on demand.

    from skylark.sdk.testing import cluster  # in conftest.py: a pytest fixture

    with Cluster(brokers=1) as cluster: ...        # or async with, in trio and asyncio

node.py        one NameServer or broker in a thread of its own: start, stop, kill, freeze
daemons.py     which daemon a node runs; the only module of sdk that imports the daemons
selection.py   which messages an expression chooses, by the broker's code, for tests in memory
embedded.py    Cluster: the nodes, their directory, waiting until they know each other
fixtures.py    pytest fixtures; pytest is imported only with them
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from skylark.mqcommon.daemons.linux import why_not_here
from skylark.mqcommon.errors import UserError

if TYPE_CHECKING:
    from skylark.sdk.testing.embedded import Cluster
    from skylark.sdk.testing.fixtures import cluster, cluster_fixture
    from skylark.sdk.testing.node import Node

__all__ = ["Cluster", "Node", "cluster", "cluster_fixture"]

_HOMES = {"Cluster": "embedded", "Node": "node", "cluster": "fixtures", "cluster_fixture": "fixtures"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        if reason := why_not_here("skylark.testing"):
            raise UserError(reason)
        return getattr(import_module(f"skylark.sdk.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'skylark.testing' has no attribute {name!r}")
