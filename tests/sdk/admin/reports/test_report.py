"""Reports as JSON."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

import pytest

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.requests.routes import ClusterRequestHeader
from skylark.sdk.admin.reports.report import FLAT, NOT_PRINTED, OPTIONAL, member, named, plain


class Role(Enum):
    MASTER = "SYNC_MASTER"


@lazy_dataclass(frozen=True, slots=True)
class Place:
    broker_name: str
    queue_id: int


@lazy_dataclass(frozen=True, slots=True)
class Row:
    place: Place = field(metadata=FLAT)
    texts: Mapping[str, str] = field(metadata=FLAT)
    lag_ms: int | None
    last_timestamp_ms: int = field(metadata=named("lastTimestamp"))
    role: Role = Role.MASTER
    clients: tuple[Place, ...] = ()
    reason: str | None = field(default=None, metadata=OPTIONAL)
    warning: str = field(default="", metadata=NOT_PRINTED)


ROW = Row(Place("a", 3), {"x.y": "1"}, None, 7, clients=(Place("b", 0),))


def test_members_have_the_names_of_json() -> None:
    document = {
        "brokerName": "a", "queueId": 3, "x.y": "1", "lagMs": None, "lastTimestamp": 7, "role": "SYNC_MASTER",
        "clients": [{"brokerName": "b", "queueId": 0}],
    }  # fmt: skip
    assert plain(ROW) == document
    assert list(plain(ROW)) == list(document)
    assert plain([ROW, {"a": frozenset({1})}, "x"]) == [document, {"a": [1]}, "x"]


def test_a_flat_member_that_is_none_has_no_members() -> None:
    @lazy_dataclass(frozen=True, slots=True)
    class Found:
        name: str
        place: Place | None = field(metadata=FLAT)

    assert plain(Found("a", None)) == {"name": "a"}
    assert plain(Found("a", Place("b", 0))) == {"name": "a", "brokerName": "b", "queueId": 0}


def test_what_is_optional_is_left_out_when_there_is_none() -> None:
    row = Row(Place("a", 3), {}, 5, 7, reason="full")
    assert plain(row)["reason"] == "full" and "reason" not in plain(ROW)


def test_warnings_are_not_printed() -> None:
    assert "warning" not in plain(Row(Place("a", 3), {}, 5, 7, warning="a broker is away"))


def test_bodies_and_headers_are_as_they_are_sent() -> None:
    assert plain([KVTable({"a": "1"}), ClusterRequestHeader("c")]) == [{"table": {"a": "1"}}, {"cluster": "c"}]


@pytest.mark.parametrize(("name", "value"), [("lastTimestamp", 7), ("brokerName", "a"), ("lagMs", None)])
def test_members_are_found_by_their_names(name: str, value: object) -> None:
    assert member(ROW, name) == value


def test_a_member_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="Row has no member 'last_timestamp_ms'"):
        member(ROW, "last_timestamp_ms")
