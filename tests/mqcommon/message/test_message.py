"""A message and a queue refuse what cannot be sent when they are made."""

from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.message import Message, own_properties
from skylark.mqcommon.message.properties import RESERVED, decode_properties
from skylark.mqcommon.message.queue import MessageQueue

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text()),
    st.lists(st.integers()), st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.integers()),
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": 5}, "topic must be a str, not int 5"),
        ({"body": "a str"}, "body must be bytes, not str 'a str'"),
        ({"body": None}, "body must be bytes, not None"),
        ({"flag": "x"}, "flag must be an int, not str 'x'"),
        ({"flag": True}, "flag must be an int, not bool True"),
        ({"tags": ["a", "b"]}, "tags must be a str, not list"),
        ({"tags": 0}, "tags must be a str, not int 0"),
        ({"keys": 5}, "keys must be a str or an iterable of str, not int 5"),
        ({"keys": 0}, "keys must be a str or an iterable of str, not int 0"),
        ({"keys": b"k"}, "keys must be a str or an iterable of str, not bytes"),
        ({"keys": ["a", 5]}, r"keys\[1\] must be a str, not int 5"),
        ({"properties": {"p": 5}}, r"properties\['p'\] must be a str, not int 5"),
        ({"properties": {5: "p"}}, "a name in properties must be a str, not int 5"),
        ({"properties": [("a", "b")]}, "properties must be a mapping of str to str, not list"),
        ({"delay_level": "3"}, "delay_level must be an int"),
        ({"sharding_key": 7}, "sharding_key must be a str, not int 7"),
        ({"priority": "7"}, "priority must be an int, not str '7'"),
    ],
)
def test_a_wrong_type_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Message(**{"topic": "t", "body": b"", **arguments})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": "a b"}, "topic is str 'a b': .*illegal characters"),
        ({"topic": ""}, "topic is str '': .*blank"),
        ({"topic": "a" * 300}, "longer than topic max length"),
        ({"tags": "a||b"}, "tags is .*one tag"),
        ({"keys": ["a b"]}, r"keys\[0\] is str 'a b': a space separates keys"),
        ({"flag": 2**31}, "flag must be from"),
        ({"delay_level": -1}, "delay_level must be from 0"),
        ({"priority": -1}, "priority must be from 0"),
        ({"priority": 2**31}, "priority must be from 0"),
        ({"priority": 1, "sharding_key": "k"}, "sharding_key and priority both choose the queue"),
        ({"tags": "a\x01"}, "^tags = str"),
        ({"keys": ["a\x02"]}, "^keys = str"),
        ({"sharding_key": "\x02"}, "^sharding_key = str"),
        ({"properties": {"a\x01": "b"}}, "holds the characters"),
        ({"properties": {"a": "b\x02"}}, "holds the characters"),
        ({"properties": {"a": "\ud800"}}, "UTF-8"),
        ({"properties": {"\ud800": "a"}}, "UTF-8"),
        ({"properties": {"": "a"}}, "not empty"),
        ({"properties": {"a": ""}}, "not empty"),
        ({"properties": {"a": "ü" * 16_000}}, "32003 bytes, at most 32000"),
        *[({"properties": {name: "a"}}, "reserved") for name in sorted(RESERVED)],
    ],
)
def test_a_wrong_value_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Message(**{"topic": "t", "body": b"", **arguments})


@pytest.mark.parametrize("body", [bytearray(b"tea"), memoryview(b"tea")])
def test_what_is_like_bytes_is_copied(body: bytearray | memoryview) -> None:
    assert Message("t", body).body == b"tea"


@given(JUNK, JUNK, JUNK, JUNK, JUNK, JUNK, JUNK, JUNK)
def test_whatever_it_gets_it_refuses_or_can_be_encoded(
    topic: Any, body: Any, tags: Any, keys: Any, properties: Any, flag: Any, delay_level: Any, sharding_key: Any
) -> None:
    try:
        message = Message(
            topic, body, tags=tags, keys=keys, properties=properties, flag=flag, delay_level=delay_level,
            sharding_key=sharding_key,
        )  # fmt: skip
    except (TypeError, ValueError):
        return
    assert isinstance(message.topic, str) and isinstance(message.body, bytes)
    assert len(own_properties(message)) <= 32_000


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1)))
def test_properties_that_are_taken_come_back(properties: dict[str, str]) -> None:
    try:
        message = Message("t", b"", properties=properties)
    except ValueError:
        assert any({"\x01", "\x02"} & {*name, *value} or name in RESERVED for name, value in properties.items())
    else:
        assert decode_properties(own_properties(message).decode()) == properties


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((5, "b", 0), "topic must be a str, not int 5"),
        (("t", None, 0), "broker_name must be a str, not None"),
        (("t", "b", "0"), "queue_id must be an int, not str '0'"),
        (("t", "b", True), "queue_id must be an int, not bool True"),
    ],
)
def test_a_queue_checks_what_it_is_made_of(arguments: tuple[Any, Any, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        MessageQueue(*arguments)


def test_a_queue_is_a_tuple() -> None:
    queue = MessageQueue("t", "b", 1)
    assert queue == ("t", "b", 1) and queue._replace(queue_id=2) == MessageQueue("t", "b", 2)
    assert repr(queue) == "MessageQueue(topic='t', broker_name='b', queue_id=1)"
    assert sorted([queue, MessageQueue("t", "a", 3)])[0].broker_name == "a"


class Keys(StrEnum):
    ORDER = "order-5"


def test_a_key_may_be_of_a_class_of_texts() -> None:
    assert Message("t", b"", keys=Keys.ORDER).properties == Message("t", b"", keys="order-5").properties
