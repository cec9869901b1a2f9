"""RocketMQ's NamespaceUtil, by its own rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from skylark.sdk.namespaces import Names, check_namespace, unwrap, wrap
from tests.sdk.fakes import record

LETTERS = st.sampled_from("abcXYZ019_-")
NAMESPACES = st.text(LETTERS, min_size=1, max_size=8)
PLAIN = st.text(st.sampled_from("abcXYZ019_-%|"), min_size=1, max_size=20)
NAMES = st.builds(str.__add__, st.sampled_from(["", RETRY_PREFIX, DLQ_PREFIX]), PLAIN) | st.sampled_from(
    ["TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer", "CID_RMQ_SYS_TRANS", ""]
)


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "prod%orders"),
        ("%RETRY%group", "%RETRY%prod%group"),
        ("%DLQ%group", "%DLQ%prod%group"),
        ("prod%orders", "prod%orders"),
        ("%RETRY%prod%group", "%RETRY%prod%group"),
        ("test%orders", "prod%test%orders"),
        ("TBW102", "TBW102"),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_names_as_servers_know_them(name: str, wrapped: str) -> None:
    assert wrap("prod", name) == wrapped
    assert wrap("", name) == name


@given(NAMESPACES, NAMES)
def test_back_and_forth(namespace: str, name: str) -> None:
    wrapped = wrap(namespace, name)
    assert wrap(namespace, wrapped) == wrapped
    if wrapped != name or is_system_topic(name):
        assert unwrap(namespace, wrapped) == name


@given(NAMESPACES, NAMESPACES, NAMES)
def test_namespaces_do_not_meet(one: str, other: str, name: str) -> None:
    wrapped = wrap(one, name)
    if one != other and wrapped != name:
        assert unwrap(other, wrapped) == wrapped
        assert wrap(other, name) != wrapped


@pytest.mark.parametrize("namespace", ["a b", "a%b", "a|b", "ä", "rmq_sys_x", "CID_RMQ_SYS_", "%"])
def test_what_is_no_namespace(namespace: str) -> None:
    with pytest.raises(InvalidArgument, match="namespace"):
        check_namespace("namespace", namespace)


def test_names_that_become_too_long_are_refused() -> None:
    names = Names("n" * 100)
    with pytest.raises(InvalidArgument, match="longer than topic max"):
        names.topic("t" * 50)
    with pytest.raises(InvalidArgument, match="longer than group max"):
        names.group("g" * 200)
    assert Names("").topic("t" * 500) == "t" * 500


def test_queues_and_messages_show_the_plain_topic() -> None:
    names, plain = Names("prod"), MessageQueue("orders", "b", 1)
    wrapped = names.queue(plain)
    assert wrapped == MessageQueue("prod%orders", "b", 1)
    assert names.plain_queue(wrapped) == plain
    assert names.plain_queues((wrapped, wrapped)) == (plain, plain)
    (message,) = names.messages(record("prod%orders", 1, 0, b"x"), "b")
    assert (message.topic, message.queue, message.body) == ("orders", plain, b"x")
    (other,) = names.messages(record("test%orders", 1, 0, b"x"), "b")
    assert other.topic == "test%orders"
