"""Static topics: brokers register which logical queues they lead, and routes show that."""

from pathlib import Path

import pytest
import trio

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC, TopicRouteData
from skylark.remoting.protocol.requests.topics import TopicQueueMappingInfo
from tests.namesrv.peer import Peer, serve


def part(
    broker: str, ids: dict[int, int], epoch: int = 1, *, topic: str = "t1", total: int = 3
) -> TopicQueueMappingInfo:
    return TopicQueueMappingInfo(topic, total_queues=total, bname=broker, epoch=epoch, curr_id_map=ids)


async def mappings(peer: Peer, topic: str = "t1") -> dict[str, TopicQueueMappingInfo] | None:
    answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": topic})
    assert answer.code == 0
    return decode_body(TopicRouteData, answer.body).topic_queue_mapping_by_broker


async def test_routes_show_who_leads_which_logical_queue(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path)
    a, b = await served.peer(), await served.peer()
    of_a, of_b = part("broker-a", {0: 0, 2: 1}), part("broker-b", {1: 0})
    await a.register(mappings={"t1": of_a})
    await b.register("127.0.0.1:20911", name="broker-b", mappings={"t1": of_b})
    assert await mappings(a) == {"broker-a": of_a, "broker-b": of_b}
    assert await mappings(a, "t2") is None
    # A queue moves: the answers that are kept encoded must not outlive that.
    moved = part("broker-b", {1: 0, 2: 1}, 2)
    await b.register("127.0.0.1:20911", name="broker-b", counter=1, mappings={"t1": moved})
    assert await mappings(a) == {"broker-a": of_a, "broker-b": moved}
    await b.stream.aclose()
    while await mappings(a) != {"broker-a": of_a}:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "bad",
    [
        part("broker-a", {0: -1}), part("broker-a", {-1: 0}), part("broker-a", {0: (1 << 31) - 1}),
        part("broker-a", {}, total=-1), TopicQueueMappingInfo("t1", scope="a\nb", bname="broker-a"),
    ],
)  # fmt: skip
async def test_a_topic_whose_mapping_cannot_be_used_is_left_out(
    bad: TopicQueueMappingInfo, nursery: trio.Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await (await serve(nursery, tmp_path)).peer()
    await peer.register(
        "127.0.0.1:10911", "t1", "t2", "t3", mappings={"t1": bad, "unknown": part("broker-a", {}, topic="unknown")}
    )
    answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert await mappings(peer, "t2") is None
    assert "'t1': its mapping of logical queues cannot be used" in caplog.text
