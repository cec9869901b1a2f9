"""FastStream's own test cases for FastAPI, against a cluster and in memory."""

from functools import partial
from typing import Any

import pytest

from sdk.integrations.faststream import RocketRouter
from sdk.integrations.faststream.fastapi import RocketRouter as FastAPIRouter
from sdk.testing import Cluster
from tests.sdk.integrations.faststream.cases import MemoryCases, RealCases
from tests.sdk.integrations.faststream.upstream.fastapi import FastAPILocalTestcase
from tests.sdk.integrations.faststream.upstream.future_fastapi import FastapiTestCase


class TestRouter(RealCases, FastapiTestCase):
    broker_router_class = RocketRouter

    @pytest.fixture(autouse=True)
    def _router_class(self, cluster: Cluster) -> None:
        self.router_class: Any = partial(FastAPIRouter, cluster.nameserver, group="fastapi")


class TestRouterInMemory(MemoryCases, FastAPILocalTestcase):
    broker_router_class = RocketRouter
    router_class = partial(FastAPIRouter, "127.0.0.1:9876", group="fastapi")
