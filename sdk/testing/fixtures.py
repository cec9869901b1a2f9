"""Pytest fixtures with a `Cluster`. They are plain functions, so tests may be sync, trio's, asyncio's or anyio's."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import pytest

from skylark.sdk.testing.embedded import Cluster

Scope = Literal["session", "package", "module", "class", "function"]


def cluster_fixture(
    brokers: int = 1,
    slaves: int = 0,
    *,
    nameservers: int = 1,
    options: Mapping[str, object] | None = None,
    scope: Scope = "function",
) -> Callable[..., Any]:
    """A fixture of your own: ``pair = cluster_fixture(brokers=2, scope="session")`` in conftest.py.

    The arguments are the same as of `Cluster`. With a wider ``scope`` several tests share the cluster: they need topics
    and groups of their own.
    """

    @pytest.fixture(scope=scope)
    def made() -> Iterator[Cluster]:
        with Cluster(brokers, slaves, nameservers=nameservers, options=options) as opened:
            yield opened

    return made


#: A NameServer and one broker, new for each test.
cluster = cluster_fixture()
