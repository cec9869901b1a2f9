"""Headers keep what recorded frames carry, read leniently, and refuse in RocketMQ's words."""

from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.protocol.command import Command, text_ext
from skylark.remoting.protocol.header import Header, header_fields
from skylark.remoting.protocol.request import NOTHING
from skylark.remoting.protocol.requests import offsets, sends, topics
from skylark.remoting.protocol.requests.replication import PageRequestHeader, PageResponseHeader
from skylark.remoting.protocol.requests.table import BY_CODE
from tests.remoting.protocol.golden import recorded

FILES = ["java_json", "java_rocketmq", "java_5.3.3", "cpp", "broker_namesrv", "admin_4.9.8", "admin_5.3.3"]

#: Ext fields that any request may carry.
INHERITED = {"bname", "ReqT", "ns", "nsd", "oway", "lo", "AccessKey", "Signature", "SecurityToken", "OnsChannel"}
HEADERS = {kind for entry in BY_CODE.values() for kind in (entry.header_type, entry.answer_header_type)} - {NOTHING}
ALL = sorted({*HEADERS, PageRequestHeader, PageResponseHeader}, key=lambda each: each.__name__)


def kept(cls: type[Header], command: Command, short: bool, where: str) -> None:
    names = {each.wire for each in header_fields(cls, short)}
    ext = command.ext or {}
    if short:
        out = sends.SendMessageRequestHeader.from_short_ext(ext).to_short_ext()
    else:
        out = cls.from_ext(ext).to_ext()
    expected = {name: value for name, value in ext.items() if name in names}
    if command.language != "CPP":
        assert text_ext(out) == expected, where
        assert not set(ext) - names - INHERITED, where
    else:
        assert set(out) == set(expected), where


def test_recorded_ext_is_kept() -> None:
    seen = set()
    for each in recorded(*FILES):
        command, entry = each.command, BY_CODE.get(each.request_code)
        if entry is None or not (each.is_request or command.ext):
            continue
        cls = entry.header_type if each.is_request else entry.answer_header_type
        if cls is NOTHING:
            assert not set(command.ext or {}) - INHERITED, each.where
        else:
            kept(cls, command, each.is_request and entry.has_short_names, each.where)
        seen.add((each.request_code, each.is_request))
    assert len(seen) > 30


@pytest.mark.parametrize("cls", ALL)
def test_every_required_field_is_refused_when_absent(cls: type[Header]) -> None:
    for each in header_fields(cls, False):
        if each.default is MISSING:
            ext = {other.wire: "0" for other in header_fields(cls, False) if other is not each}
            with pytest.raises(RequestRefused) as refused:
                cls.from_ext(ext)
            assert refused.value.code == 1
            assert refused.value.remark == (
                "org.apache.rocketmq.remoting.exception.RemotingCommandException: "
                f"the custom field <{each.wire}> is null"
            )


@pytest.mark.parametrize("cls", ALL)
def test_headers_come_back(cls: type[Header]) -> None:
    ext = {each.wire: "1" for each in header_fields(cls, False)}
    header = cls.from_ext(ext)
    assert cls.from_ext(header.to_ext()) == header
    assert all(getattr(header, each.name) is not None for each in fields(cls))  # type: ignore[arg-type]


def test_no_ext_at_all() -> None:
    assert topics.GetAllTopicConfigRequestHeader.from_ext(None).to_ext() == {}
    with pytest.raises(RequestRefused, match="<topic> is null"):
        topics.TopicRequestHeader.from_ext(None)


@pytest.mark.parametrize("value", ["x", "", " 1", "1.5", "1_0", "٣", 1.5, True, [1], {}, b"1", "9" * 5000, 2**31])
def test_unreadable_integers(value: Any) -> None:
    with pytest.raises(RequestRefused, match=r"the custom field <queueId> is (not an integer|longer than 32 bits)"):
        offsets.QueueRequestHeader.from_ext({"topic": "T", "queueId": value})


@pytest.mark.parametrize(
    ("value", "flag"),
    [("true", True), ("TRUE", True), ("1", True), (True, True), (1, True), ("false", False), ("0", False), (0, False)],
)
def test_flags(value: Any, flag: bool) -> None:
    ext = {"topic": "T", "queueId": 0, "committed": value}
    assert offsets.GetMaxOffsetRequestHeader.from_ext(ext).committed is flag


def test_short_names() -> None:
    header = sends.SendMessageRequestHeader("g", "T", "TBW102", 4, 1, 0, 5, 0, "p", batch=True)
    assert header.to_short_ext() == {
        "a": "g", "b": "T", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 5, "h": 0, "i": "p", "m": True,
    }  # fmt: skip
    assert sends.SendMessageRequestHeader.from_short_ext(header.to_short_ext()) == header
    assert sends.SendMessageRequestHeader.from_ext(header.to_ext()) == header


junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none(), max_size=1)


def refused_field(cls: type[Header], ext: dict[str, Any]) -> str | None:
    """The first field that cannot be read, one after another; None when all can."""
    for each in header_fields(cls, False):
        value = ext.get(each.wire)
        if value is None:
            if each.is_required:
                return f"<{each.wire}> is null"
            continue
        try:
            each.read(value)
        except ValueError as error:
            return f"<{each.wire}> is {error}"
    return None


@given(st.sampled_from(ALL), st.data())
def test_any_values_give_a_header_or_a_refusal_of_the_first_bad_one(cls: type[Header], data: st.DataObject) -> None:
    known = header_fields(cls, False)
    ext = data.draw(st.fixed_dictionaries({each.wire: junk for each in known}))
    expected = refused_field(cls, ext)
    if expected is not None:
        with pytest.raises(RequestRefused) as refused:
            cls.from_ext(ext)
        assert refused.value.remark.endswith(expected)
        return
    values = {each: each.default if ext[each.wire] is None else each.read(ext[each.wire]) for each in known}
    header = cls.from_ext(ext)
    assert [getattr(header, each.attribute) for each in known] == list(values.values())
    assert header.to_ext() == {each.wire: value for each, value in values.items() if value is not None}
