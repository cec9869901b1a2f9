"""Names: what RocketMQ refuses, in its words, and the topics that it makes itself."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon import names
from skylark.mqcommon.errors import RequestRefused

GOLDEN = Path(__file__).parents[1] / "golden" / "wire" / "admin_5.3.3.jsonl"


@given(st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True))
def test_legal_names_pass(name: str) -> None:
    names.check_topic(name)
    names.check_group(name)


@pytest.mark.parametrize("topic", [names.retry_topic("g" * 248), names.dlq_topic("g" * 250)])
def test_retry_and_dead_letter_topics_may_be_longer(topic: str) -> None:
    names.check_topic(topic)
    assert names.is_retry_topic(topic) != names.is_dlq_topic(topic)


@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        ("", "The specified topic is blank."),
        (" \t", "The specified topic is blank."),
        ("a b", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("a\n", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("../x", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("é", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("t" * 128, "The specified topic is longer than topic max length."),
        ("%RETRY%" + "g" * 249, "The specified topic is longer than topic max length."),
    ],
)
def test_bad_topics_are_refused(topic: str, remark: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        names.check_topic(topic)
    assert (caught.value.code, caught.value.remark) == (29, remark)


@pytest.mark.parametrize(
    ("group", "remark"),
    [
        ("", "the specified group is blank"),
        ("g" * 256, "the specified group is longer than group max length 255."),
        ("a/b", "the specified group[a/b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
    ],
)
def test_bad_groups_are_refused(group: str, remark: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        names.check_group(group)
    assert (caught.value.code, caught.value.remark) == (29, remark)


def test_system_topics_are_not_for_users() -> None:
    for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything", "BenchmarkTest"):
        assert names.is_system_topic(topic)
        with pytest.raises(RequestRefused) as caught:
            names.check_topic_is_users(topic)
        remark = f"The topic[{topic}] is conflict with system topic."
        assert (caught.value.code, caught.value.remark) == (29, remark)
    names.check_topic_is_users("flights")


def test_sends_to_internal_topics_are_forbidden() -> None:
    forbidden = (
        "SCHEDULE_TOPIC_XXXX RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC "
        "SELF_TEST_TOPIC OFFSET_MOVED_EVENT"
    )
    for topic in forbidden.split(" "):
        with pytest.raises(RequestRefused) as caught:
            names.check_topic_is_sendable(topic)
        assert (caught.value.code, caught.value.remark) == (16, f"Sending message to topic[{topic}] is forbidden.")
    for topic in ("flights", "BenchmarkTest", "TBW102", "RMQ_SYS_TRACE_TOPIC", "%RETRY%g"):
        names.check_topic_is_sendable(topic)


def test_system_topics_are_those_of_a_recorded_broker() -> None:
    """The first registration of a RocketMQ 5.3.3 broker, with all switches on."""
    with GOLDEN.open() as lines:
        frames = (bytes.fromhex(json.loads(line)["hex"]) for line in lines)
        frame = next(frame for frame in frames if b'"SELF_TEST_TOPIC":{' in frame)
    start = frame.index(b'"topicConfigTable":') + len(b'"topicConfigTable":')
    table, _ = json.JSONDecoder().raw_decode(frame[start:].decode())
    recorded = {(t["topicName"], t["readQueueNums"], t["writeQueueNums"], t["perm"]) for t in table.values()}
    ours = names.system_topics("DefaultCluster", "broker-a", auto_create_queue_nums=4, trace_topic=names.TRACE_TOPIC)
    assert {(t.name, t.queue_nums, t.queue_nums, t.perm) for t in ours} == recorded | {
        (names.DLQ_RESENT_TOPIC, 1, 1, 6)
    }


def test_switches_take_topics_away() -> None:
    topics = names.system_topics("c", "b", auto_create_queue_nums=None, cluster_topic=False, broker_topic=False)
    perms = {topic.name: topic.perm for topic in topics}
    assert (perms["c"], perms["b"]) == (names.PERM_INHERIT, names.PERM_INHERIT)
    assert "TBW102" not in perms and "RMQ_SYS_TRACE_TOPIC" not in perms


def test_permissions_are_shown_as_letters() -> None:
    texts = [names.perm_text(perm) for perm in range(8)]
    assert texts == ["---", "--X", "-W-", "-WX", "R--", "R-X", "RW-", "RWX"]
