"""A NameServer and a broker of ours in this process, whose delay levels are all one second, and push consumers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from broker.broker import Broker
from broker.options import BrokerOptions
from mqcommon.errors import RouteNotFound
from remoting.protocol.requests.topics import TopicConfig
from sdk import Admin
from tests.namesrv.peer import serve

QUEUES = 4


@dataclass(frozen=True)
class PushCluster:
    """Topic ``t`` has four queues unless told otherwise, topic ``one`` has one."""

    nameserver: str
    broker: str


@asynccontextmanager
async def push_cluster(home: Path, queues: int = QUEUES, **others: Any) -> AsyncIterator[PushCluster]:
    # A slow machine makes a broker register new topics late: it pauses for five times what a registration took.
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            served = await serve(nursery, home)
            options = BrokerOptions(
                broker_name="broker-a",
                broker_ip1="127.0.0.1",
                bind_address="127.0.0.1",
                listen_port=0,
                namesrv_addr=served.address,
                store_path_root_dir=str(home / "store"),
                mapped_file_size_commit_log=1 << 20,
                mapped_file_size_consume_queue=20 * 1000,
                max_hash_slot_num=1000,
                max_index_num=4000,
                message_delay_level=" ".join(["1s"] * 18),
                **others,
            )
            broker = Broker(options)
            addr = await nursery.start(broker.run)
            async with Admin(served.address) as admin:
                await admin.create_topic(addr, TopicConfig("t", queues, queues))
                await admin.create_topic(addr, TopicConfig("one", 1, 1))
                await known(admin, "t")
                await known(admin, "one")
            yield PushCluster(served.address, addr)
            broker.stop()
            nursery.cancel_scope.cancel()


async def known(admin: Admin, topic: str) -> None:
    while True:
        try:
            await admin.topic_route(topic)
        except RouteNotFound:
            await trio.sleep(0.002)
        else:
            return
