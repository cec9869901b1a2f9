"""Requests recorded from official clients and tools get answers in the form that official brokers gave."""

from typing import Any

import pytest

from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import loads
from tests.broker.desk import Desk
from tests.remoting.protocol.golden import Recorded, recorded
from tests.support.caller import Caller

FILES = ["java_json", "java_rocketmq", "java_5.3.3", "cpp", "admin_4.9.8", "admin_5.3.3"]
# 36 and others are not these handlers' business; 206 is the NameServer's
OURS = {14, 15, 17, 21, 25, 26, *range(28, 33), 34, 35, 38, 200, 201, 202, 203, 207, 208, 215, 222}
OURS |= {300, 315, 317, 343, 351, 352}
# What official brokers say, and these may leave out: schedule offsets of delayed messages in use
OPTIONAL = {28: "scheduleMessageOffset_"}


def desk_like_the_recorded_one() -> Desk:
    desk = Desk()
    for topic in ("WireTopic", "AdminT"):
        desk.meta.topics.create_on_send(topic, "TBW102", 4)
    for group in ("wire_push_cg", "wire_pull_cg", "wire_order_cg", "admin_group"):
        desk.meta.groups.get_or_create(group)
        desk.meta.offsets.commit(group, "WireTopic", 0, 1)
        desk.stats.get(group, "WireTopic", 1, 1)
    for topic in ("WireTopic", "AdminT", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"):
        desk.stats.put(topic, 1, 1)
    return desk


def answers(name: str) -> dict[int, list[Recorded]]:
    """Successful answers by request code."""
    found: dict[int, list[Recorded]] = {}
    for each in recorded(name):
        if not each.is_request and each.command.code == 0:
            found.setdefault(each.request_code, []).append(each)
    return found


def shape(value: Any) -> Any:
    """Member names and kinds of values; maps with keys of their own and lists are alike however long."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: shape(each) for key, each in value.items() if not isinstance(each, dict)}
    return type(value).__name__


@pytest.mark.parametrize("name", FILES)
async def test_answers_have_the_recorded_shape(name: str) -> None:
    expected, compared = answers(name), 0
    for each in recorded(name):
        if not each.is_request or each.request_code not in OURS:
            continue
        desk, request = desk_like_the_recorded_one(), each.command
        channel = Caller().channel
        if each.request_code in (38, 203):
            heartbeat = next(one.command for one in recorded(name) if one.request_code == 34 and one.is_request)
            await desk.ask(34, {}, heartbeat.body, channel=channel)
        answer = await desk.ask(
            request.code, request.ext, request.body, channel=channel, codec=request.codec,
            version=request.version, language=request.language,
        )  # fmt: skip
        if answer.code != 0:
            assert answer.remark, each.where
            continue
        for golden in expected.get(each.request_code, [])[:1]:
            assert_same_shape(each, answer, golden.command)
            compared += 1
    assert compared >= 3


def assert_same_shape(each: Recorded, answer: Command, golden: Command) -> None:
    version_independent = {"IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE", "topicCreatedMs"}
    ours, theirs = set(answer.ext or ()), set(golden.ext or ())
    assert ours - version_independent == theirs - version_independent, each.where
    assert bool(answer.body) == bool(golden.body), each.where
    if not golden.body or each.request_code == 26:
        return
    mine, official = shape(loads(answer.body)), shape(loads(golden.body))
    assert set(official) - set(mine) == set(), each.where
    if each.request_code == 28:
        table, official_table = loads(answer.body)["table"], loads(golden.body)["table"]
        missing = {key for key in official_table if key not in table and not key.startswith(OPTIONAL[28])}
        assert {key for key in missing if not key.startswith("commitLogDiskRatio_")} == set(), each.where
    for key, kind in official.items():
        assert mine[key] == kind, (each.where, key)
