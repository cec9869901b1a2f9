"""A cluster of fakes: two NameServers, two brokers with topic t, and an Admin that asks them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import Command
from skylark.sdk.admin.client import Admin
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving


class Cluster:
    """Two NameServers, two brokers with topic t, an Admin."""

    def __init__(self, namesrvs: list[FakeNamesrv], brokers: list[FakeBroker], admin: Admin) -> None:
        self.namesrvs = namesrvs
        self.a, self.b = brokers
        self.admin = admin

    def route(self, topic: str) -> None:
        for namesrv in self.namesrvs:
            namesrv.add(topic, self.a, self.b)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    one, two, a, b = FakeNamesrv(), FakeNamesrv(), FakeBroker("broker-a"), FakeBroker("broker-b")
    async with (
        serving(one),
        serving(two),
        serving(a),
        serving(b),
        Admin(f"{one.addr};{two.addr}", timeout_ms=2000) as admin,
    ):
        found = Cluster([one, two], [a, b], admin)
        found.route("t")
        yield found


def ext(request: Command) -> dict[str, str]:
    """The fields of a request, as text, without the offer to speak CBOR."""
    found = {name: str(value) for name, value in (request.ext or {}).items() if name != "skylark"}
    return {name: value.lower() if value in ("True", "False") else value for name, value in found.items()}


def mq(broker_name: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue("t", broker_name, queue_id)
