"""A NameServer and a broker of ours in the event loop of the test, over real sockets, with small files on disk."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from skylark import Admin
from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import RouteNotFound
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.namesrv.peer import serve
from tests.support.waiting import until

# A test must not depend on how full this machine's disk is, nor on the hour.
ANY_DISK: dict[str, Any] = {
    "disk_max_used_space_ratio": 95,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "clean_file_forcibly_enable": False,
    "file_reserved_time": 1_000_000,
}


@dataclass(frozen=True)
class Servers:
    """The addresses."""

    nameserver: str
    broker: str


def small_broker(nameserver: str, store: Path, **others: Any) -> Broker:
    """Broker-a, or what the options say."""
    options = {
        "broker_name": "broker-a", "broker_ip1": "127.0.0.1", "bind_address": "127.0.0.1", "listen_port": 0,
        "namesrv_addr": nameserver, "store_path_root_dir": str(store), "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 20 * 1000, "max_hash_slot_num": 1000, "max_index_num": 4000, **ANY_DISK,
    }  # fmt: skip
    return Broker(BrokerOptions(**{**options, **others}))


@asynccontextmanager
async def servers(home: Path, topics: Mapping[str, int] | None = None, **options: Any) -> AsyncIterator[Servers]:
    """Servers that run in the block. ``topics``: numbers of queues; ``options`` are the broker's."""
    async with trio.open_nursery() as nursery:
        namesrv = await serve(nursery, home)
        broker = small_broker(namesrv.address, home / "store", **options)
        addr = await nursery.start(broker.run)
        async with Admin(namesrv.address) as admin:
            for topic, queues in (topics or {}).items():
                await admin.create_topic(addr, TopicConfig(topic, queues, queues))
                await until_known(admin, topic)
        yield Servers(namesrv.address, addr)
        broker.stop()
        nursery.cancel_scope.cancel()


async def until_known(admin: Admin, topic: str) -> None:
    """The NameServer has a route for the topic."""

    async def is_known() -> bool:
        try:
            await admin.topic_route(topic)
        except RouteNotFound:
            return False
        return True

    # A slow machine makes a broker register new topics late: it pauses for five times what a registration took.
    await until(is_known, f"a route of {topic}", timeout_s=120)
