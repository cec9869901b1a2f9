"""A NameServer in this process, and peers that talk to it byte by byte."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.protocol.body import Body, DataVersion
from skylark.remoting.protocol.command import JSON, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.dialect import encode_body, loads
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.registrations import REGISTER_BROKER, RegisterBrokerBody, body_crc32
from skylark.remoting.protocol.requests.routes import GET_ALL_TOPIC_LIST_FROM_NAMESERVER
from skylark.remoting.protocol.requests.topics import TopicConfigTable, TopicQueueMappingInfo
from tests.namesrv.registrations import configs_of
from tests.support.clock import ManualClock
from tests.support.waiting import DEADLINE_S

V4_9_3 = 399
V5_3_3 = 479


class Peer:
    """One connection, one request at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._connection = Connection()
        self._opaque = 0

    async def ask(
        self,
        code: int,
        ext: Mapping[str, Any] | None = None,
        body: bytes | Body = b"",
        *,
        version: int = V5_3_3,
        codec: int = JSON,
    ) -> Command:
        """The answer, whatever its code."""
        self._opaque += 1
        data = encode_body(body) if isinstance(body, Body) else body
        ext = None if ext is None else dict(ext)
        request = Command(code, ext, data, opaque=self._opaque, codec=codec, version=version, language="JAVA")
        answer = await self.exchange(encode(request))
        assert answer.is_response
        assert answer.opaque == self._opaque
        return answer

    async def exchange(self, frame: bytes) -> Command:
        """Send bytes and receive one frame."""
        await self.stream.send_all(frame)
        with trio.fail_after(DEADLINE_S):
            while True:
                data = await self.stream.receive_some()
                assert data, "the connection was closed instead of an answer"
                for answer in self._connection.receive_data(data):
                    return answer

    async def register(
        self,
        addr: str = "127.0.0.1:10911",
        *topics: str,
        name: str = "broker-a",
        cluster: str = "DefaultCluster",
        broker_id: int = 0,
        ha: str = "127.0.0.1:10912",
        counter: int = 0,
        mappings: Mapping[str, TopicQueueMappingInfo] | None = None,
        **ext: Any,
    ) -> Command:
        """Register a broker with 4 queues per topic; it has t1 and t2 unless told otherwise."""
        body = encode_body(
            RegisterBrokerBody(
                TopicConfigTable(
                    data_version=DataVersion(0, 1, counter),
                    topic_config_table=configs_of(*(topics or ("t1", "t2"))),
                    topic_queue_mapping_info_map=dict(mappings or {}),
                )
            )
        )
        fields = {
            "brokerName": name, "brokerAddr": addr, "clusterName": cluster, "brokerId": broker_id,
            "haServerAddr": ha, "enableActingMaster": False, "compressed": False, "bodyCrc32": body_crc32(body),
        }  # fmt: skip
        return await self.ask(REGISTER_BROKER.code, {**fields, **ext}, body)

    async def topics(self) -> list[str]:
        """All topics that the NameServer knows."""
        answer = await self.ask(GET_ALL_TOPIC_LIST_FROM_NAMESERVER.code)
        assert answer.code == 0
        found: list[str] = loads(answer.body)["topicList"]
        return found


class Served:
    """A running NameServer and its address."""

    def __init__(self, namesrv: Namesrv, address: str, clock: ManualClock) -> None:
        self.namesrv = namesrv
        self.address = address
        self.clock = clock

    async def peer(self) -> Peer:
        host, _, port = self.address.rpartition(":")
        return Peer(await trio.open_tcp_stream(host, int(port)))


async def serve(nursery: trio.Nursery, directory: Path, **options: Any) -> Served:
    """Start a NameServer on a free port, with its files in ``directory``."""
    clock = ManualClock()
    settings = {"bind_address": "127.0.0.1", "listen_port": 0, "kv_config_path": str(directory / "kvConfig.json")}
    namesrv = Namesrv(NamesrvOptions(**{**settings, **options}), clock=clock)
    return Served(namesrv, await nursery.start(namesrv.run), clock)
