"""222 and 314: offsets set from outside, with and without connected consumers."""

from typing import Any

import pytest

from skylark.remoting.protocol.command import CBOR
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import (
    CLONE_GROUP_OFFSET,
    INVOKE_BROKER_TO_RESET_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    ResetOffsetBody,
)
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.desk import Desk
from tests.broker.meta.support import options
from tests.broker.store.support import put
from tests.support.caller import Caller

RESET = INVOKE_BROKER_TO_RESET_OFFSET.code
CLONE = CLONE_GROUP_OFFSET.code
COMMIT = UPDATE_CONSUMER_OFFSET.code


def desk_with_messages(**changes: Any) -> Desk:
    """Queue 1 of T has three messages, one a second; group g has consumed two of them."""
    desk = Desk(options(**changes))
    desk.meta.topics.put(TopicConfig("T", 2, 2))
    for group in ("g", "h"):
        desk.meta.groups.put(SubscriptionGroupConfig(group))
    for _ in range(3):
        put(desk.store, "T", 1, b"x")
        desk.clock.advance(1_000)
    desk.meta.offsets.commit("g", "T", 1, 2)
    return desk


def connect(desk: Desk, language: str = "JAVA", version: int = 479) -> Caller:
    caller = Caller()
    data = ConsumerData("g", subscription_data_set=[SubscriptionData("T")])
    desk.clients.join_consumer_group(caller.channel, HeartbeatData(f"client-{language}"), data, language, version, 0)
    return caller


async def reset(desk: Desk, codec: int = 0, **fields: Any) -> dict[int, int]:
    ext = {"group": "g", "topic": "T", "timestamp": -1, "isForce": True, **fields}
    answer = await desk.ask(RESET, ext, codec=codec)
    assert answer.code == 0, answer.remark
    table = decode_body(ResetOffsetBody, answer.body, codec).offset_table
    assert {queue.topic for queue in table} == {"T"}
    return {queue.queue_id: offset for queue, offset in table.items()}


def committed(desk: Desk, group: str = "g") -> int:
    return desk.meta.offsets.query(group, "T", 1)


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_to_a_time_or_to_the_end(codec: int) -> None:
    desk = desk_with_messages()
    first_ms = desk.store.store_time("T", 1, 0)
    assert await reset(desk, codec, timestamp=first_ms + 1) == {0: 0, 1: 1}
    assert committed(desk) == 1
    assert await reset(desk, codec) == {0: 0, 1: 3}
    assert await reset(desk, codec, timestamp=0) == {0: 0, 1: 0}
    assert await reset(desk, codec, queueId=1, offset=2) == {1: 2}
    assert await reset(desk, codec, queueId=-1, offset=-1) == {0: 0, 1: 3}
    assert committed(desk) == 3


async def test_now_is_the_end_also_while_the_clock_is_behind_the_store_times() -> None:
    desk = desk_with_messages()
    desk.clock.set_by(-3_600_000)
    put(desk.store, "T", 1, b"x")
    desk.clock.advance(500)
    assert await reset(desk, timestamp=desk.clock.now_ms() - 100) == {0: 0, 1: 4}
    assert await reset(desk, timestamp=desk.clock.now_ms() - 60_000) == {0: 0, 1: 0}, "rather twice than never"


async def test_without_force_it_only_goes_back() -> None:
    desk = desk_with_messages()
    assert await reset(desk, isForce=False) == {0: 0, 1: 2}
    assert await reset(desk, isForce=False, timestamp=0) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"topic": "unknown"}, 17, "Topic unknown does not exist"),
        ({"topic": "a b"}, 29, "illegal characters"),
        ({"group": "unknown"}, 26, "Group unknown does not exist"),
        ({"group": " "}, 29, "blank"),
        ({"timestamp": -2}, 29, "neither ms since 1970"),
        ({"timestamp": "yesterday"}, 1, "timestamp"),
        ({"queueId": 2}, 29, "queueId[2] is illegal"),
        ({"offset": 1}, 29, "queueId is missing"),
        ({"queueId": 1, "offset": 4}, 1, "Target offset 4 not in consume queue range [0-3]"),
    ],
)
async def test_bad_resets_say_what_is_wrong(changes: dict[str, Any], code: int, text: str) -> None:
    desk = desk_with_messages()
    answer = await desk.ask(RESET, {"group": "g", "topic": "T", "timestamp": -1, "isForce": True, **changes})
    assert answer.code == code
    assert text in (answer.remark or "")
    assert committed(desk) == 2


async def test_commits_are_ignored_until_a_connected_consumer_has_noticed() -> None:
    desk = desk_with_messages()
    caller = connect(desk)
    await reset(desk, timestamp=0)
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 3}
    assert (await desk.ask(COMMIT, commit, channel=caller.channel)).remark == "Offset has been previously reset"
    assert committed(desk) == 0
    assert desk.resets.pop(caller.channel, "g", "T", 1) == 0
    assert (await desk.ask(COMMIT, commit)).remark is None
    assert committed(desk) == 3


async def test_commits_count_again_when_the_consumers_have_left() -> None:
    desk = desk_with_messages()
    caller = connect(desk)
    await reset(desk, timestamp=0)
    desk.clients.close(caller.channel)
    await desk.ask(COMMIT, {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 3})
    assert committed(desk) == 3
    assert ("g", "T", 1) not in desk.resets.pending


async def test_before_5x_clients_are_told() -> None:
    desk = desk_with_messages(use_server_side_reset_offset=False)
    java, cpp = connect(desk), connect(desk, "CPP", 63)
    assert await reset(desk, timestamp=0) == {0: 0, 1: 0}
    assert committed(desk) == 2
    assert desk.resets.pending == {}
    [told_java], [told_cpp] = java.received(), cpp.received()
    assert told_java.code == 220 and told_java.is_oneway
    assert told_java.ext == {"group": "g", "topic": "T", "timestamp": "0", "isForce": "true"}
    assert told_java.body.startswith(b'{"offsetTable":{{"brokerName":')
    assert told_cpp.body.startswith(b'{"offsetTable":[{"brokerName":')
    tables = [decode_body(ResetOffsetBody, told.body).offset_table for told in (told_java, told_cpp)]
    assert tables[0] == tables[1] and len(tables[0]) == 2


async def test_before_5x_a_client_that_is_too_old_or_not_there() -> None:
    desk = desk_with_messages(use_server_side_reset_offset=False)
    assert await reset(desk, timestamp=0) == {0: 0, 1: 0}
    assert committed(desk) == 0
    connect(desk, version=27)
    answer = await desk.ask(RESET, {"group": "g", "topic": "T", "timestamp": -1, "isForce": True})
    assert answer.code == 1 and "does not support this feature" in (answer.remark or "")


def clone(**changes: Any) -> dict[str, Any]:
    return {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": False, **changes}


async def test_a_group_gets_the_offsets_of_another() -> None:
    desk = desk_with_messages()
    assert (await desk.ask(CLONE, clone())).code == 0
    assert committed(desk, "h") == 2
    desk.meta.offsets.commit("g", "T", 1, 3)
    desk.meta.offsets.commit("g", "gone", 1, 3)
    desk.meta.topics.put(TopicConfig("%RETRY%g", 1, 1))
    desk.meta.offsets.commit("g", "%RETRY%g", 0, 3)
    assert (await desk.ask(CLONE, clone(topic=""))).code == 0
    assert committed(desk, "h") == 3
    assert desk.meta.offsets.query("h", "%RETRY%g", 0) == desk.meta.offsets.query("h", "gone", 1) == -1


async def test_topics_that_connected_consumers_have_left_are_cloned_offline_only() -> None:
    desk = desk_with_messages()
    data = ConsumerData("g", subscription_data_set=[SubscriptionData("other")])
    desk.clients.join_consumer_group(Caller().channel, HeartbeatData("c"), data, "JAVA", 479, 0)
    assert (await desk.ask(CLONE, clone(topic=None))).code == 0
    assert committed(desk, "h") == -1
    assert (await desk.ask(CLONE, clone(offline=True))).code == 0
    assert committed(desk, "h") == 2


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"srcGroup": "unknown"}, 26, "Group unknown does not exist"),
        ({"destGroup": "unknown"}, 26, "Group unknown does not exist"),
        ({"destGroup": "a/b"}, 29, "illegal characters"),
        ({"destGroup": "g"}, 29, "the same"),
        ({"topic": "unknown"}, 17, "Topic unknown does not exist"),
        ({"srcGroup": "h", "destGroup": "g"}, 1, "has no offsets in topic T"),
    ],
)
async def test_bad_clones_say_what_is_wrong(changes: dict[str, Any], code: int, text: str) -> None:
    answer = await desk_with_messages().ask(CLONE, clone(**changes))
    assert answer.code == code
    assert text in (answer.remark or "")
