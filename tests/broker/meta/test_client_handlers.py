"""34, 35, 38, 40, 203, 204."""

from typing import Any

import orjson
import pytest
import trio
import trio.testing

from skylark.broker.meta import clients
from skylark.broker.meta.client_handlers import MAX_EXPRESSIONS, MAX_GROUPS, MAX_NEW_GROUPS, WINDOW_S
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_ALL_PRODUCER_INFO,
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_CONSUMER_RUNNING_INFO,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    QUERY_SUBSCRIPTION_BY_CONSUMER,
    UNREGISTER_CLIENT,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    ProducerConnection,
    ProducerData,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.groups import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
from tests.broker.desk import Desk
from tests.broker.meta.support import options
from tests.support.caller import Caller

RUNNING_INFO = GET_CONSUMER_RUNNING_INFO.code
CONSUME_DIRECTLY = CONSUME_MESSAGE_DIRECTLY.code


def beat(
    client_id: str = "c", group: str = "g", topic: str = "T", expression: str = "*", **changes: Any
) -> HeartbeatData:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic, expression)], **changes)
    return HeartbeatData(client_id, consumer_data_set=[consumer])


def notices(caller: Caller) -> list[str]:
    """Groups that the caller was told to share anew; forgets them."""
    pushed = caller.received()
    groups = [str((command.ext or {})["consumerGroup"]) for command in pushed]
    assert all(command.code == 40 and command.is_oneway for command in pushed)
    pushed.clear()
    return groups


async def all_told(desk: Desk) -> None:
    """Let the notices go out that waited for others."""
    with trio.move_on_after(3 * WINDOW_S):
        await desk.client_handlers.notices.run()


async def test_a_heartbeat_as_java_sends_it() -> None:
    desk, caller = Desk(), Caller()
    # golden: 34 of admin_5.3.3
    body = (
        b'{"clientID":"192.0.2.2@18564#5376021721568","consumerDataSet":[],"heartbeatFingerprint":0,'
        b'"producerDataSet":[{"groupName":"wire_pg"},{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}'
    )
    answer = await desk.ask(HEART_BEAT.code, {}, body, channel=caller.channel)
    assert answer.code == 0
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": True, "IS_SUB_CHANGE": True}
    found = await desk.ask(GET_PRODUCER_CONNECTION_LIST.code, {"producerGroup": "wire_pg"})
    (connection,) = decode_body(ProducerConnection, found.body).connection_set
    assert connection.client_id == "192.0.2.2@18564#5376021721568"
    assert connection.client_addr == "127.0.0.1:50001"
    assert (connection.language, connection.version) == ("JAVA", 479)


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_a_consumers_heartbeat_makes_group_and_retry_topic(codec: int) -> None:
    desk = Desk()
    await desk.ask(HEART_BEAT.code, body=beat(), codec=codec)
    assert desk.meta.groups.get("g") is not None
    retry = desk.meta.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.write_queue_nums, retry.perm) == (1, 6)
    answer = await desk.ask(GET_CONSUMER_CONNECTION_LIST.code, {"consumerGroup": "g"}, codec=codec)
    found = decode_body(ConsumerConnection, answer.body, codec)
    assert found.subscription_table["T"].sub_string == "*"
    assert [one.client_id for one in found.connection_set] == ["c"]


async def test_a_broadcasting_group_has_no_retry_topic() -> None:
    desk = Desk()
    await desk.ask(HEART_BEAT.code, body=beat(message_model="BROADCASTING"))
    assert desk.meta.topics.get("%RETRY%g") is None
    assert desk.clients.consumer_group("g") is not None


@pytest.mark.parametrize(("length", "has_topic"), [(248, True), (249, False), (255, False)])
async def test_a_retry_topic_that_could_hold_no_message_is_not_made(
    length: int, has_topic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    desk, group = Desk(), "g" * length
    for _ in range(2):
        assert (await desk.ask(HEART_BEAT.code, body=beat(group=group))).code == ResponseCode.SUCCESS
    assert desk.clients.consumer_group(group) is not None
    assert (desk.meta.topics.get(f"%RETRY%{group}") is not None) is has_topic
    assert caplog.text.count("gets no retry topic") == (0 if has_topic else 1)


async def test_a_group_that_may_not_be_created_is_passed_over() -> None:
    desk = Desk(options(auto_create_subscription_group=False))
    answer = await desk.ask(HEART_BEAT.code, body=beat())
    assert answer.code == 0
    assert desk.clients.consumer_group("g") is None


async def test_fingerprints_tell_whether_subscriptions_changed() -> None:
    desk, caller = Desk(), Caller()

    async def changed(fingerprint: int, without_sub: bool = False) -> bool:
        data = beat()
        data.heartbeat_fingerprint, data.without_sub = fingerprint, without_sub
        if without_sub:
            data.consumer_data_set[0].subscription_data_set = []
        answer = await desk.ask(HEART_BEAT.code, body=data, channel=caller.channel)
        return bool((answer.ext or {})["IS_SUB_CHANGE"])

    assert [await changed(1), await changed(1, True), await changed(2), await changed(2)] == [False, False, True, False]
    assert desk.clients.subscription("g", "T") is not None


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"{", b'{"clientID":7,"consumerDataSet":3}', b"\xff"])
async def test_a_body_that_is_no_heartbeat_is_refused(body: bytes) -> None:
    answer = await Desk().ask(HEART_BEAT.code, body=body)
    assert answer.code != 0
    assert answer.remark


async def test_members_with_different_subscriptions_are_told_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    desk, one, two = Desk(), Caller(), Caller()
    text = "g topic T is subscribed to as 'blue' by two, as 'red' by one"
    for client_id, expression, caller in (("one", "red", one), ("two", "blue", two), ("one", "red", one)):
        body = beat(client_id, expression=expression, consume_type="CONSUME_POP")
        answer = await desk.ask(HEART_BEAT.code, body=body, channel=caller.channel)
    assert (answer.ext or {})["subscriptionDifferences"] == text
    for _ in range(2):
        desk.client_handlers.tick()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "the members of group g have different subscriptions, so some messages reach nobody: "
        + text[2:]
        + "; give all members the same subscriptions, or each kind of consumer a group of its own"
    ]


async def test_members_are_told_when_one_comes_changes_leaves_or_is_cut_off(autojump_clock: Any) -> None:
    desk, one, two = Desk(), Caller("1.1.1.1:1"), Caller("2.2.2.2:2")
    await desk.ask(HEART_BEAT.code, body=beat("c1"), channel=one.channel)
    assert notices(one) == ["g"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.client_handlers.notices.run)
        await trio.sleep(WINDOW_S)
        await desk.ask(HEART_BEAT.code, body=beat("c1"), channel=one.channel)
        await trio.sleep(WINDOW_S)
        assert notices(one) == []
        await desk.ask(HEART_BEAT.code, body=beat("c2"), channel=two.channel)
        assert (notices(one), notices(two)) == (["g"], ["g"])
        await desk.ask(
            UNREGISTER_CLIENT.code,
            {"clientID": "c2", "producerGroup": "", "consumerGroup": "g"},
            channel=two.channel,
        )
        await trio.sleep(2 * WINDOW_S)
        assert (notices(one), notices(two)) == (["g"], [])
        await desk.ask(HEART_BEAT.code, body=beat("c2"), channel=two.channel)
        await trio.sleep(2 * WINDOW_S)
        notices(one)
        desk.client_handlers.channel_closed(two.channel)
        assert notices(one) == ["g"]
        nursery.cancel_scope.cancel()


async def test_members_that_join_one_after_another_are_told_in_a_few_rounds(autojump_clock: Any) -> None:
    desk, callers = Desk(), [Caller(f"1.1.1.1:{number}") for number in range(600)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.client_handlers.notices.run)
        for number, caller in enumerate(callers):
            await desk.ask(HEART_BEAT.code, body=beat(f"c{number}"), channel=caller.channel)
        await trio.sleep(3 * WINDOW_S)
        # the first joined alone; a window later all are told of all, in slices
        assert [len(caller.received()) for caller in callers] == [2] + [1] * 599
        desk.client_handlers.channel_closed(callers[-1].channel)
        desk.client_handlers.channel_closed(callers[-2].channel)
        await trio.sleep(3 * WINDOW_S)
        assert [len(caller.received()) for caller in callers[:-2]] == [3] + [2] * 597
        nursery.cancel_scope.cancel()


async def test_nobody_is_told_when_the_broker_or_the_group_says_so() -> None:
    quiet_broker = Desk(options(notify_consumer_ids_changed_enable=False))
    caller = Caller()
    await quiet_broker.ask(HEART_BEAT.code, body=beat(), channel=caller.channel)
    assert notices(caller) == []
    quiet_group = Desk()
    await quiet_group.ask(
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code,
        body=b'{"groupName":"g","notifyConsumerIdsChangedEnable":false}',
    )
    await quiet_group.ask(HEART_BEAT.code, body=beat(), channel=caller.channel)
    assert notices(caller) == []


async def test_unregistering_needs_no_group() -> None:
    desk, caller = Desk(), Caller()
    await desk.ask(HEART_BEAT.code, body=HeartbeatData("c", [ProducerData("p")]), channel=caller.channel)
    for ext in ({"clientID": "c"}, {"clientID": "c", "producerGroup": "p"}, {"clientID": "c", "producerGroup": "p"}):
        assert (await desk.ask(UNREGISTER_CLIENT.code, ext, channel=caller.channel)).code == 0
    answer = await desk.ask(GET_PRODUCER_CONNECTION_LIST.code, {"producerGroup": "p"})
    assert (answer.code, answer.remark) == (1, "the producer group[p] not exist")


async def test_silent_clients_are_closed_and_their_fellows_told(autojump_clock: Any) -> None:
    desk, silent, lively = Desk(), Caller("1.1.1.1:1"), Caller("2.2.2.2:2")
    await desk.ask(HEART_BEAT.code, body=beat("c1"), channel=silent.channel)
    desk.clock.advance(119_000)
    await desk.ask(HEART_BEAT.code, body=beat("c2"), channel=lively.channel)
    await all_told(desk)
    notices(lively)
    desk.client_handlers.tick()
    assert silent.channel.closed_reason is None
    desk.clock.advance(2_000)
    desk.client_handlers.tick()
    assert silent.channel.closed_reason == "no heartbeat in time"
    assert lively.channel.closed_reason is None
    assert notices(lively) == ["g"]


async def test_the_members_of_a_group_are_listed() -> None:
    desk = Desk()
    answer = await desk.ask(GET_CONSUMER_LIST_BY_GROUP.code, {"consumerGroup": "g"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, g")
    await desk.ask(HEART_BEAT.code, body=beat("192.0.2.2@pull@STREAM"))
    answer = await desk.ask(GET_CONSUMER_LIST_BY_GROUP.code, {"consumerGroup": "g"})
    assert answer.body == b'{"consumerIdList":["192.0.2.2@pull@STREAM"]}'  # golden


async def test_a_group_that_is_not_online_is_refused() -> None:
    answer = await Desk().ask(GET_CONSUMER_CONNECTION_LIST.code, {"consumerGroup": "wire_order_cg"})
    assert (answer.code, answer.remark) == (206, "the consumer group[wire_order_cg] not online")  # golden


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_a_subscription_of_a_group_is_that_of_its_members(codec: int) -> None:
    desk, found = Desk(), []
    await desk.ask(HEART_BEAT.code, body=beat(expression="a || b"))
    for names in ({"group": "g", "topic": "T"}, {"group": "g", "topic": "U"}, {"group": "h", "topic": "T"}):
        answer = await desk.ask(QUERY_SUBSCRIPTION_BY_CONSUMER.code, names, codec=codec)
        body = decode_body(QuerySubscriptionResponseBody, answer.body, codec)
        assert {"group": body.group, "topic": body.topic} == names
        found.append(body.subscription_data and body.subscription_data.sub_string)
    assert found == ["a || b", None, None]


async def test_a_language_that_we_do_not_know_is_other() -> None:
    desk = Desk()
    await desk.ask(HEART_BEAT.code, body=beat(), language="COBOL", version=63)
    answer = await desk.ask(GET_CONSUMER_CONNECTION_LIST.code, {"consumerGroup": "g"})
    (connection,) = decode_body(ConsumerConnection, answer.body).connection_set
    assert (connection.language, connection.version) == ("OTHER", 63)


async def test_a_full_disk_is_no_reason_to_forget_who_came(autojump_clock: Any) -> None:
    desk, caller = Desk(), Caller()
    await desk.ask(HEART_BEAT.code, body=beat(group="known"), channel=caller.channel)
    await all_told(desk)
    notices(caller)
    desk.meta.fs.capacity = desk.meta.fs.used()
    data = beat(group="known", topic="U")
    data.consumer_data_set += beat(group="new").consumer_data_set
    answer = await desk.ask(HEART_BEAT.code, body=data, channel=caller.channel)
    assert answer.code == ResponseCode.SUCCESS
    assert notices(caller) == ["known", "new"]
    assert desk.meta.topics.get("%RETRY%new") is None
    desk.meta.fs.capacity += 100_000
    await desk.ask(HEART_BEAT.code, body=data, channel=caller.channel)
    assert desk.meta.topics.get("%RETRY%new") is not None


async def test_the_golden_cpp_heartbeat_with_wrong_codes() -> None:
    desk = Desk()
    body = orjson.dumps(
        {
            "clientID": "c",
            "consumerDataSet": [
                {
                    "consumeFromWhere": 0, "consumeType": 1, "groupName": "g", "messageModel": 1,
                    "subscriptionDataSet": [
                        {"codeSet": [0, 0], "subString": "TagA || TagB", "subVersion": "1700000000000",
                         "tagsSet": ["TagA", "TagB"], "topic": "T"},
                    ],
                }
            ],
            "producerDataSet": [],
        }
    )  # fmt: skip
    assert (await desk.ask(HEART_BEAT.code, body=body, language="CPP", version=63)).code == 0
    found = desk.clients.subscription("g", "T")
    assert found is not None
    assert found.code_set == [2598919, 2598920]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HeartbeatData("c", [ProducerData(f"p{n}") for n in range(MAX_GROUPS + 1)]), "groups"),
        (beat(expression="a||" * MAX_EXPRESSIONS), "characters"),
        (HeartbeatData("c" * 600_000), "bytes"),
    ],
)
async def test_a_heartbeat_that_would_hold_up_others_is_refused(data: HeartbeatData, reason: str) -> None:
    desk = Desk()
    answer = await desk.ask(HEART_BEAT.code, body=data)
    assert answer.code != 0
    assert reason in (answer.remark or "")
    assert not any(desk.clients.consumer_group(one.group_name) for one in data.consumer_data_set)


async def test_a_heartbeat_of_very_many_empty_parts_is_refused() -> None:
    body = b'{"clientID":"c","consumerDataSet":[' + b",".join([b"{}"] * 21_000) + b"]}"
    answer = await Desk().ask(HEART_BEAT.code, body=body)
    assert (answer.code, answer.remark) == (1, "the body cannot be read: it has more than 20000 entries")


async def test_many_new_groups_are_made_by_several_heartbeats_and_joined_by_the_first() -> None:
    desk, caller = Desk(), Caller()
    groups = [f"g{n}" for n in range(2 * MAX_NEW_GROUPS + 1)]
    data = HeartbeatData("c", consumer_data_set=[ConsumerData(name) for name in groups])
    counts = []
    for _ in range(3):
        await desk.ask(HEART_BEAT.code, body=data, channel=caller.channel)
        counts.append(sum(desk.meta.groups.get(name) is not None for name in groups))
        for name in groups:
            assert (await desk.ask(GET_CONSUMER_LIST_BY_GROUP.code, {"consumerGroup": name})).code == 0
    assert counts == [MAX_NEW_GROUPS, 2 * MAX_NEW_GROUPS, 2 * MAX_NEW_GROUPS + 1]


async def test_groups_that_may_not_be_made_are_not_joined_however_many_they_are() -> None:
    desk, caller = Desk(options(auto_create_subscription_group=False)), Caller()
    groups = [f"g{n}" for n in range(MAX_NEW_GROUPS + 2)]
    data = HeartbeatData("c", consumer_data_set=[ConsumerData(name) for name in groups])
    await desk.ask(HEART_BEAT.code, body=data, channel=caller.channel)
    assert not any(desk.clients.consumer_group(name) for name in groups)


async def test_the_producers_of_all_groups_are_listed() -> None:
    desk, caller = Desk(), Caller()
    producers = [ProducerData("p"), ProducerData("q")]
    await desk.ask(HEART_BEAT.code, body=HeartbeatData("c", producers), channel=caller.channel)
    desk.clock.advance(1_000)
    answer = await desk.ask(GET_ALL_PRODUCER_INFO.code)
    table = decode_body(ProducerTableInfo, answer.body).data
    assert sorted(table) == ["p", "q"]
    [info] = table["p"]
    assert (info.client_id, info.remote_ip, info.language) == ("c", caller.channel.remote, "JAVA")
    assert info.last_update_timestamp == desk.clock.now_ms() - 1_000


async def producers(desk: Desk, caller: Caller, *groups: str) -> Command:
    data = HeartbeatData("c", producer_data_set=[ProducerData(group) for group in groups])
    return await desk.ask(HEART_BEAT.code, body=data, channel=caller.channel)


async def test_a_connection_with_too_many_groups_is_refused_more_and_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "FEW_GROUPS", 1)
    monkeypatch.setattr(clients, "MAX_GROUPS_OF_CONNECTION", 3)
    monkeypatch.setattr(clients, "MAX_MEMBERS", 4)
    desk, greedy, modest, last = Desk(), Caller(), Caller("127.0.0.1:2"), Caller("127.0.0.1:3")
    answer = await producers(desk, greedy, "a", "b", "c", "d")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert (answer.remark or "").startswith("1 groups have no room here, such as d: a connection may be in ")
    assert (await producers(desk, greedy, "c")).code == 0, "the client is in it already"
    answer = await desk.ask(HEART_BEAT.code, body=beat("c", "e"), channel=greedy.channel)
    assert answer.code == ResponseCode.INVALID_PARAMETER, "consumer groups count, too"
    assert desk.meta.groups.get("e") is None
    assert (await producers(desk, modest, "x")).code == 0
    assert (await producers(desk, modest, "x", "y")).code == ResponseCode.INVALID_PARAMETER, "all members are too many"
    assert (await producers(desk, last, "z")).code == 0, "a few are always allowed"
    desk.client_handlers.channel_closed(greedy.channel)
    assert (await producers(desk, modest, "x", "y")).code == 0
    for caller in (modest, last):
        desk.client_handlers.channel_closed(caller.channel)
    assert desk.clients._members == 0


async def test_subscriptions_are_limited_by_connection_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "FEW_CHARS", 300)
    monkeypatch.setattr(clients, "MAX_CHARS_OF_CONNECTION", 1_000)
    monkeypatch.setattr(clients, "MAX_CHARS", 1_200)
    desk, greedy, modest = Desk(), Caller(), Caller("127.0.0.1:2")

    async def ask(caller: Caller, group: str, chars: int, **changes: Any) -> int:
        data = beat("c", group, expression="x" * chars)
        data.without_sub = changes.get("without_sub", False)
        return (await desk.ask(HEART_BEAT.code, body=data, channel=caller.channel)).code

    assert await ask(greedy, "g", 700) == 0
    assert await ask(greedy, "h", 1) == ResponseCode.INVALID_PARAMETER
    assert await ask(greedy, "g", 700) == 0
    assert await ask(greedy, "g", 900) == ResponseCode.INVALID_PARAMETER
    assert await ask(modest, "k", 90) == 0
    assert await ask(modest, "k", 300) == ResponseCode.INVALID_PARAMETER, "all have too many"
    assert await ask(greedy, "g", 90) == 0
    assert await ask(modest, "k", 300) == 0
    for caller in (greedy, modest):
        desk.client_handlers.channel_closed(caller.channel)
    assert desk.clients._chars == 0 and not desk.clients._chars_of


@pytest.mark.parametrize("data", [
    HeartbeatData("c" * 1_025, producer_data_set=[ProducerData("g")]),
    HeartbeatData("c", producer_data_set=[ProducerData("g" * 513)]),
    beat(group="g" * 513),
    beat(topic="T" * 513),
])  # fmt: skip
async def test_long_names_are_refused(data: HeartbeatData) -> None:
    desk = Desk()
    assert (await desk.ask(HEART_BEAT.code, body=data)).code == ResponseCode.INVALID_PARAMETER
