"""A whole broker in this process: memory for a disk, real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.disk.files import FileSystem
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from tests.support.in_process import ANY_DISK
from tests.support.memory_files import MemoryFiles

SMALL: dict[str, Any] = {
    "bind_address": "127.0.0.1",
    "listen_port": 0,
    "fast_listen_port": 0,
    "broker_name": "broker-a",
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 100,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    **ANY_DISK,
}


@asynccontextmanager
async def running(fs: FileSystem | None = None, **options: Any) -> AsyncIterator[tuple[RemotingClient, str]]:
    """A client and the broker's address; the broker is stopped gracefully."""
    broker = Broker(BrokerOptions(**{**SMALL, **options}), fs=fs or MemoryFiles())
    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(broker.run)
        yield client, addr
        broker.stop()


def send_request(topic: str, body: bytes, *, queue_id: int = 0, properties: str = "", **ext: Any) -> Command:
    """310, as clients send it."""
    fields = {
        "a": "group", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000, "h": 0,
        "i": properties, "j": 0, "k": False, "m": False, "n": "broker-a",
    }  # fmt: skip
    return Command(SEND_MESSAGE_V2.code, {**fields, **ext}, body)


def pull_request(topic: str, offset: int, *, queue_id: int = 0, wait_ms: int = 0, **ext: Any) -> Command:
    """11, with the subscription in it."""
    fields = {
        "consumerGroup": "group", "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 4 | (2 if wait_ms else 0), "commitOffset": 0, "suspendTimeoutMillis": wait_ms, "subVersion": 0,
        "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    return Command(PULL_MESSAGE.code, {**fields, **ext})
