"""A broker that dies stays on the roll, with the time when it went; a broker that is replaced or forgotten does not."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from skylark.mqconsole.showing.findings import FAIL, WARN, counts, with_away
from skylark.mqconsole.watching.roll import KEEP_MS, MOST_UNLISTED, UNLISTED, AwayBroker, Roll
from skylark.mqconsole.watching.snapshot import BrokerRow
from skylark.mqconsole.web.system import bucket_rows, replica_rows
from skylark.remoting.protocol.requests.routes import LOST, UNHEARD, AbsentBroker
from skylark.sdk.admin.reports.broker_load import (
    BucketUse,
    SlaveLag,
    StoreScrubs,
    bucket_of,
    load_of,
    scrubs_of,
    totals_of,
)
from skylark.sdk.admin.reports.findings import DoctorFinding
from skylark.sdk.admin.targets import Target

MASTER, SLAVE = Target("c", "a", 0, "10.0.0.1:1"), Target("c", "a", 1, "10.0.0.2:1")
OTHER = Target("c", "b", 0, "10.0.0.3:1")


def call(
    roll: Roll,
    now_ms: int,
    *listed: Target,
    errors: Mapping[str, str] | None = None,
    absent: Iterable[AbsentBroker] = (),
) -> list[tuple[str, int, bool]]:
    away = roll.update(now_ms, listed, errors or {}, absent)
    return [(one.title, one.since_ms, one.is_since_known) for one in away]


def test_a_master_that_is_listed_no_longer_is_away_since_then() -> None:
    roll = Roll()
    assert call(roll, 1_000, MASTER, OTHER) == []
    for now_ms in (2_000, 9_000):
        assert call(roll, now_ms, OTHER) == [("master a at 10.0.0.1:1", 2_000, True)]
    assert call(roll, 10_000, MASTER, OTHER) == []
    assert call(roll, 11_000, OTHER) == [("master a at 10.0.0.1:1", 11_000, True)]


def test_one_that_is_listed_and_does_not_answer_keeps_its_time_when_it_is_dropped() -> None:
    roll = Roll()
    call(roll, 1_000, MASTER)
    assert call(roll, 2_000, MASTER, errors={MASTER.addr: "refused"}) == [("master a at 10.0.0.1:1", 2_000, True)]
    (one,) = roll.update(3_000, [], {}, [AbsentBroker("a", "c", LOST, True)])
    assert (one.since_ms, one.is_listed, one.is_reported, one.reason) == (
        2_000, False, True, "its connection ended, or it was silent",
    )  # fmt: skip


def test_one_that_was_away_before_the_console_started() -> None:
    roll = Roll()
    away = call(roll, 1_000, OTHER, errors={OTHER.addr: "refused"}, absent=[AbsentBroker("a", "c", UNHEARD)])
    assert away == [("broker a", 1_000, False), ("master b at 10.0.0.3:1", 1_000, False)]
    assert call(roll, 2_000, OTHER, absent=[AbsentBroker("a", "c", UNHEARD)]) == [("broker a", 1_000, False)]


def test_masters_come_first_and_one_with_a_successor_is_no_master() -> None:
    roll = Roll()
    call(roll, 1_000, MASTER, SLAVE, OTHER)
    promoted = Target("c", "a", 0, SLAVE.addr)
    assert call(roll, 2_000, promoted) == [
        ("master b at 10.0.0.3:1", 2_000, True), ("former master a at 10.0.0.1:1", 2_000, True),
    ]  # fmt: skip


@pytest.mark.parametrize("broker_id", [0, 1])
def test_a_process_with_a_new_address_takes_the_place_of_the_one_that_is_away(broker_id: int) -> None:
    roll = Roll()
    call(roll, 1_000, MASTER)
    call(roll, 2_000)
    assert call(roll, 3_000, Target("c", "a", broker_id, "10.0.0.9:1")) == []


def test_one_that_nameservers_forgot_is_forgotten() -> None:
    roll = Roll()
    call(roll, 1_000, MASTER, OTHER)
    assert len(call(roll, 2_000, OTHER, absent=[AbsentBroker("a", "c", LOST)])) == 1
    assert call(roll, 3_000, OTHER) == []


def test_without_such_nameservers_it_is_kept_for_a_day_or_until_somebody_says_so() -> None:
    roll = Roll()
    call(roll, 1_000, MASTER, OTHER)
    assert len(call(roll, 2_000, OTHER)) == 1
    assert not roll.forget(OTHER.addr) and not roll.forget("10.9.9.9:1")
    assert len(call(roll, 2_000 + KEEP_MS, OTHER)) == 1
    assert call(roll, 2_001 + KEEP_MS, OTHER) == []
    call(roll, 3_000 + KEEP_MS)
    assert roll.sets() == {("c", "b")} and roll.forget(OTHER.addr)
    assert call(roll, 4_000 + KEEP_MS) == [] and roll.sets() == set()


def test_the_roll_is_bounded() -> None:
    roll = Roll()
    call(roll, 1_000, MASTER)
    call(roll, 2_000, *(Target("c", f"set-{number}", 0, f"10.0.0.9:{number}") for number in range(MOST_UNLISTED)))
    assert len(call(roll, 3_000)) == MOST_UNLISTED and roll.sets() == {
        ("c", f"set-{number}") for number in range(MOST_UNLISTED)
    }


def test_the_doctor_is_told_what_only_the_console_knows() -> None:
    told = AwayBroker("c", "a", 0, MASTER.addr, 1_000, True, UNLISTED, is_reported=True)
    slave = AwayBroker("c", "s", 1, SLAVE.addr, 1_000, False, UNLISTED)
    silent = AwayBroker("c", "b", 0, OTHER.addr, 1_000, True, "refused", is_listed=True)
    of_doctor = [
        DoctorFinding(WARN, "absent", "a", "", ""), DoctorFinding(WARN, "absent", "z", "", ""),
        DoctorFinding(FAIL, "ports", OTHER.addr, "", ""),
    ]  # fmt: skip
    rows = with_away(of_doctor, [told, slave, silent])
    assert [(row.state, row.check, row.where) for row in rows] == [
        (FAIL, "away", "a"), (WARN, "away", "s"), (WARN, "absent", "z"), (FAIL, "ports", OTHER.addr),
    ]  # fmt: skip
    assert "forgetBroker -b a" in rows[0].remedy and "since before" in rows[1].text
    assert counts(rows) == {"FAIL": 2, "WARN": 2, "INFO": 0, "OK": 0}


def test_replicas_are_shown_by_set_with_the_master_first() -> None:
    def broker(name: str, broker_id: int | None, lag: SlaveLag = SlaveLag(), **more: Any) -> BrokerRow:  # noqa: B008
        return BrokerRow("c", name, broker_id, f"{name}{broker_id}", load_of({}, 0), lag, totals_of({}), **more)

    rows = replica_rows([
        broker("b", 0), broker("a", None, error="gone", away_since_ms=5), broker("a", 2, SlaveLag(7, 30)),
        broker("a", 0), broker("a", 1, in_sync=False),
    ])  # fmt: skip
    assert [(row.broker_name, row.role, row.state, row.lag.lag_bytes) for row in rows] == [
        ("a", "master", "ok", None), ("a", "former master", "fail", None), ("a", "slave 1", "warn", None),
        ("a", "slave 2", "ok", 7), ("b", "master", "ok", None),
    ]  # fmt: skip


def test_buckets_are_shown_of_brokers_that_have_one_the_writer_first() -> None:
    def broker(name: str, broker_id: int, table: dict[str, str]) -> BrokerRow:
        addr = f"{name}{broker_id}"
        return BrokerRow("c", name, broker_id, addr, load_of({}, 0), SlaveLag(), totals_of({}), bucket=bucket_of(table))

    owner = {"tierRole": "OWNER", "tierStoredBytes": "7", "tierBehindBytes": "3", "tierOldestMs": "5"}
    away = {"tierRole": "OWNER", "tierProblem": "no answer", "tierProblemSinceMs": "9"}
    rows = bucket_rows([
        broker("c", 0, {}), broker("b", 0, {"tierRole": "STOPPED", "tierProblem": "two owners"}),
        broker("a", 1, {"tierRole": "FOLLOWER"}), broker("a", 0, owner), broker("d", 0, away),
    ])  # fmt: skip
    assert [(row.broker_addr, row.state) for row in rows] == [
        ("a0", "ok"), ("a1", "ok"), ("b0", "fail"), ("d0", "warn"),
    ]  # fmt: skip
    assert rows[0].bucket == BucketUse("OWNER", 7, 3, 5, "", 0)


def test_what_scrubs_have_found_is_read_from_the_runtime_info() -> None:
    """A broker of RocketMQ, or an older one, says nothing of it."""
    table = {"lastScrubEndMs": "5", "scrubPercent": "40", "blocksRepaired": "3", "blocksDamaged": "1"}
    assert scrubs_of(table) == StoreScrubs(5, 40, 3, 1)
    assert scrubs_of({"bootTimestamp": "1"}) == StoreScrubs(None, None, None, None)
