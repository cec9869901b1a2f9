"""A cluster for tests: NameServers and brokers inside of the test process. See docs/guides/test-your-service.md."""

from typing import TYPE_CHECKING, Any

from skylark.sdk import testing

if TYPE_CHECKING:
    from skylark.sdk.testing import Cluster, Node, cluster, cluster_fixture

__all__ = ["Cluster", "Node", "cluster", "cluster_fixture"]


def __getattr__(name: str) -> Any:
    """Imported on first use: a program's own tests may do without pytest."""
    return getattr(testing, name)
