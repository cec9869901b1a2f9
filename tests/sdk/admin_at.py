"""An Admin that has one server only: whatever it asks, of a topic, a group or a NameServer, it asks there."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from skylark.remoting.protocol.requests.routes import BrokerData, TopicRouteData
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.requests import AdminRequests
from skylark.sdk.endpoint import Endpoint


class OneServer:
    """A client of one server, in place of a ClientHandle."""

    timeout_ms = 1000

    def __init__(self, at: Endpoint) -> None:
        self._at = at
        self.name_servers = SimpleNamespace(ask=self._ask, wait_known=self._wait_known)

    def at(self, addr: str) -> Endpoint:
        return self._at

    async def fetch_route(self, topic: str) -> TopicRouteData:
        return TopicRouteData(broker_datas=[BrokerData("c", "b", {0: self._at.addr})])

    async def _ask(self, call: Callable[[Endpoint], Awaitable[Any]], timeout_ms: float) -> Any:
        return await call(self._at)

    async def _wait_known(self, timeout_ms: float) -> list[str]:
        return [self._at.addr]


def admin_at(at: Endpoint, namespace: str = "") -> Admin:
    admin, server = Admin(at.addr, namespace=namespace), OneServer(at)
    admin._ask = AdminRequests(server)  # type: ignore[arg-type]
    return admin
