"""Each check, on facts that a test makes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.daemons import ROOT
from skylark.mqadmin.doctor.checks import (
    CHECKS,
    addresses_are_usable,
    brokers_answer,
    brokers_are_here,
    buckets_take_files,
    clock_skew_ms,
    clocks_agree,
    controllers_answer,
    disks_are_fast,
    disks_have_space,
    groups_have_majorities,
    groups_keep_up,
    ids_are_unique,
    memory_suffices,
    name_servers_agree,
    name_servers_answer,
    nothing_is_dead,
    open_files_suffice,
    ports_are_open,
    registrations_are_guarded,
    replicas_are_in_sync,
    run_checks,
    sets_have_masters,
    settings_are_safe,
    slaves_keep_up,
    stores_are_sound,
    subscriptions_agree,
    versions_are_equal,
)
from skylark.mqadmin.doctor.facts import (
    FAIL,
    INFO,
    OK,
    WARN,
    BrokerFacts,
    Check,
    ControllerFacts,
    Facts,
    Finding,
    GroupFacts,
    NameServerFacts,
    PortFacts,
    ReplicaSetFacts,
)

NOW_MS = 1_760_000_000_000
ONE = NameServerFacts("10.0.0.1:9876", None, False, {"a": {0: "10.0.0.1:10911"}}, {}, frozenset({"t"}))
AWAY = "cannot connect"


def broker(broker_id: int = 0, info: dict[str, str] | None = None, **members: Any) -> BrokerFacts:
    addr = members.pop("addr", f"10.0.0.1:{10911 + broker_id}")
    return BrokerFacts(members.pop("name", "a"), broker_id, addr, info=info or {}, asked_ms=NOW_MS, **members)


def found(check: Check, facts: Facts) -> list[tuple[str, str]]:
    """State and place of each finding."""
    return [(one.state, one.where) for one in check(facts)]


def states(check: Check, *known: BrokerFacts) -> list[str]:
    return [one.state for one in check(Facts(brokers=known))]


def test_every_nameserver_must_answer() -> None:
    away = NameServerFacts("b:1", AWAY)
    facts = Facts((ONE, away, NameServerFacts("c:1", "no permission", refused=True)))
    assert found(name_servers_answer, facts) == [(OK, ONE.addr), (WARN, "b:1"), (WARN, "c:1")]
    # One is left: clients survive no further loss.
    assert found(name_servers_answer, Facts((ONE, away))) == [(OK, ONE.addr), (FAIL, "b:1")]
    assert found(name_servers_answer, Facts((away, away))) == [(FAIL, "b:1")] * 2


@pytest.mark.parametrize("key", ["aclEnable", "authenticationEnabled"])
def test_guarded_brokers_need_nameservers_that_know_who_registers(key: str) -> None:
    guarded, open_one = replace(ONE, is_guarded=True), replace(ONE, addr="b:1")
    servers = (guarded, open_one, NameServerFacts("c:1", AWAY))
    facts = Facts(servers, brokers=(broker(config={key: "true"}), broker(1)))
    assert found(registrations_are_guarded, facts) == [(OK, ONE.addr), (FAIL, "b:1")]
    assert found(registrations_are_guarded, Facts(servers, brokers=(broker(config={key: "false"}),))) == []


def test_nameservers_that_know_less_are_named() -> None:
    less = NameServerFacts("b:1", None, False, {}, {}, ONE.topics)
    fewer = NameServerFacts("c:1", None, False, ONE.brokers, {}, frozenset())
    facts = Facts((ONE, less, fewer, NameServerFacts("d:1", AWAY)))
    assert found(name_servers_agree, facts) == [(OK, ONE.addr), (WARN, "b:1"), (WARN, "c:1")]
    assert found(name_servers_agree, Facts((ONE,))) == []
    # When the other NameServer dies, clients do not find the broker.
    assert found(name_servers_agree, Facts((ONE, less))) == [(OK, ONE.addr), (FAIL, "b:1")]


def test_nameservers_with_different_addresses_of_a_broker_are_a_failure() -> None:
    other = NameServerFacts("b:1", None, False, {"a": {0: "10.0.0.7:10911"}}, {}, ONE.topics)
    first, *_ = name_servers_agree(Facts((ONE, other)))
    assert (first.state, first.where) == (FAIL, "a:0")
    assert f"10.0.0.1:10911 by {ONE.addr}; 10.0.0.7:10911 by b:1" in first.text


def test_brokers_that_are_away_are_named_once() -> None:
    one = NameServerFacts("x:1", None, False, ONE.brokers, absent={"b": "it was stopped"})
    assert [(each.state, each.where) for each in brokers_are_here(Facts((one, one)))] == [(WARN, "b")]
    assert not list(brokers_are_here(Facts((ONE,))))


def test_brokers_with_one_name_are_named_once() -> None:
    contested = NameServerFacts("x:1", None, False, ONE.brokers, {"a": {0: "10.0.0.9:10911"}})
    (one,) = ids_are_unique(Facts((contested, contested)))
    assert (one.state, one.where) == (FAIL, "a:0")
    assert "10.0.0.1:10911" in one.text
    assert "10.0.0.9:10911" in one.text


def test_every_broker_must_answer() -> None:
    assert states(brokers_answer, broker(), broker(1, error=AWAY)) == [OK, FAIL]
    assert states(brokers_answer, broker(), broker(1, error=AWAY), broker(2)) == [OK, WARN, OK]
    assert states(brokers_answer, broker(error=AWAY), broker(1), broker(2)) == [FAIL, OK, OK]
    assert states(brokers_answer, broker(error="no permission", refused=True)) == [WARN]
    assert found(brokers_answer, Facts((ONE,))) == [(WARN, "cluster")]
    assert found(brokers_answer, Facts((NameServerFacts("x:1", AWAY),))) == []


def test_loopback_is_no_address_for_other_machines() -> None:
    local = (broker(addr="127.0.0.1:10911"), broker(addr="[::1]:10911"), broker())
    assert len(list(addresses_are_usable(Facts((ONE,), local)))) == 2
    assert found(addresses_are_usable, Facts((NameServerFacts("127.0.0.1:9876"),), local)) == []


def test_ports_that_are_closed_are_named() -> None:
    ports = (PortFacts("fast", "x:1"), PortFacts("HA", "x:2", AWAY), PortFacts("fast", "x:3", AWAY))
    assert states(ports_are_open, broker(ports=ports)) == [OK, WARN, WARN]


def clock(ahead_ms: int, took_ms: int = 0) -> BrokerFacts:
    boot_ms = NOW_MS - 100_000_000 + 123
    seconds = (NOW_MS + ahead_ms - boot_ms) // 1000
    minutes, hours = seconds // 60, seconds // 3600
    runtime = f"[ {hours // 24} days, {hours % 24} hours, {minutes % 60} minutes, {seconds % 60} seconds ]"
    return broker(info={"bootTimestamp": str(boot_ms), "runtime": runtime}, took_ms=took_ms)


@given(st.integers(-10_000_000, 10_000_000), st.integers(0, 5_000))
def test_the_skew_is_never_overstated_and_understated_by_what_cannot_be_known(ahead_ms: int, took_ms: int) -> None:
    skew_ms = clock_skew_ms(clock(ahead_ms, took_ms))
    assert skew_ms is not None
    assert skew_ms * ahead_ms >= 0
    assert abs(skew_ms) <= abs(ahead_ms)
    assert abs(ahead_ms) - abs(skew_ms) <= 1_000 + took_ms


@pytest.mark.parametrize(
    ("ahead_ms", "state"), [(0, OK), (-1_500, OK), (10_000, WARN), (-10_000, WARN), (600_000, FAIL), (-600_000, FAIL)]
)
def test_clocks(ahead_ms: int, state: str) -> None:
    assert states(clocks_agree, clock(ahead_ms)) == [state]


def test_a_broker_that_tells_no_time_is_no_alarm() -> None:
    assert states(clocks_agree, broker(info={"bootTimestamp": "x", "runtime": "?"})) == [INFO]


def test_a_clock_that_went_back_is_named_with_how_far() -> None:
    def found(ahead_ms: int, times: int, back_ms: int) -> list[tuple[str, str]]:
        rows = {"storeTimeAheadMs": ahead_ms, "clockSetBackTimes": times, "clockSetBackMs": back_ms}
        one = broker(info={**clock(0).info, **{key: str(value) for key, value in rows.items()}})
        return [(each.state, each.text) for each in clocks_agree(Facts(brokers=(one,)))][1:]

    assert found(0, 0, 0) == found(1_500, 0, 0) == []
    assert found(3_600_000, 0, 0) == [(WARN, "its clock was set back: store times are 3,600 s ahead of it")]
    assert found(0, 2, 2_500) == [(INFO, "its clock went back 2 times since the start, by 2.5 s in all")]


def test_versions() -> None:
    new, old = ({"brokerVersionDesc": text} for text in ("V5_3_3", "V4_9_8"))
    assert states(versions_are_equal, broker(info=new), broker(1, info=new)) == [OK]
    (one,) = versions_are_equal(Facts(brokers=(broker(info=new), broker(1, info=old))))
    assert one.state == WARN
    assert "V4_9_8: a:1" in one.text
    assert states(versions_are_equal) == []


@pytest.mark.parametrize(("ratio", "state"), [("0.10", OK), ("0.80", WARN), ("0.95", FAIL), ("", INFO), ("nan%", INFO)])
def test_disks(ratio: str, state: str) -> None:
    assert states(disks_have_space, broker(info={"commitLogDiskRatio": ratio})) == [state]


@pytest.mark.parametrize(("limit", "expected"), [("1024", [WARN]), ("8192", [OK]), ("1048576", [OK]), ("", [])])
def test_few_open_files_are_named(limit: str, expected: list[str]) -> None:
    one = broker(info={"openFilesLimit": limit, "mostMappedQueueFiles": "208"})
    assert states(open_files_suffice, one) == expected
    for finding in open_files_suffice(Facts(brokers=(one,))):
        assert finding.text == f"may have {int(limit):,} open files, 208 of them for queues"


@pytest.mark.parametrize(("used", "expected"), [("50", [OK]), ("90", [FAIL]), ("", [])])
def test_memory_that_is_nearly_used_up_fails(used: str, expected: list[str]) -> None:
    one = broker(info={"memoryLimit": "100", "memoryUsed": used})
    assert states(memory_suffices, one) == expected
    assert states(memory_suffices, broker(info={"memoryLimit": "100"})) == []


@pytest.mark.parametrize(("slowest_ms", "expected"), [("12", [OK]), ("1500", [WARN]), ("31000", [FAIL]), ("", [])])
def test_slow_disks_are_named(slowest_ms: str, expected: list[str]) -> None:
    assert states(disks_are_fast, broker(info={"slowestFlushMs": slowest_ms})) == expected


DAY_MS = 24 * 3600 * 1000
NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("info", "config", "state", "text"),
    [
        ({}, {}, OK, "no damage of its store is known, but no scrub has ended yet"),
        ({"lastScrubEndMs": str(NOW_MS - DAY_MS)}, {}, OK, "no damage of its store is known"),
        ({"bootTimestamp": str(NOW_MS - 29 * DAY_MS)}, {}, WARN, "its store was not read as a whole for 29 days"),
        ({"lastScrubEndMs": str(NOW_MS - 29 * DAY_MS)}, {"scrubCycleDays": "15"}, OK, "no damage"),
        ({}, {"scrubEnable": "false"}, INFO, "it does not read its store by itself"),
        (
            {"badBlocksInCycle": "2"},
            {},
            WARN,
            "blocks of the log that its disk has damaged since its scrub began: 2; all",
        ),
        ({"blocksDamaged": "1", "badBlocksInCycle": "1"}, {}, FAIL, "damaged blocks of its log: 1; no other"),
        ({"badBlocksInCycle": "17", "diskIsFailing": "true"}, {}, FAIL, "its disk has damaged 17 blocks"),
        ({"sumFilesLost": "2"}, {}, WARN, "files of block sums that were gone or damaged at its start"),
        ({"sumFilesLost": "0"}, {}, OK, "no damage of its store is known"),
    ],
)
def test_damage_of_the_disk_is_named(info: dict[str, str], config: dict[str, str], state: str, text: str) -> None:
    one = broker(info={"blocksDamaged": "0", **info}, config=config)
    (found,) = stores_are_sound(Facts(brokers=(one,), now_ms=NOW_MS))
    assert found.state == state and found.text.startswith(text)
    assert bool(found.remedy) == (state in (WARN, FAIL))


@pytest.mark.parametrize(
    ("info", "state", "text"),
    [
        ({}, OK, "its bucket has 3 MiB, 1 MiB of full files are not there yet"),
        (
            {"tierProblem": "no answer", "tierProblemSinceMs": str(NOW_MS - 120_000)},
            WARN,
            "nothing goes to its bucket for 2",
        ),
        ({"tierProblem": "no answer", "tierProblemSinceMs": str(NOW_MS - 900_000)}, FAIL, "nothing goes to its bucket"),
        (
            {"tierProblem": "no right", "tierRetryInMs": "-1"},
            FAIL,
            "nothing goes to its bucket for 0 minutes: no right",
        ),
        ({"tierProblem": "two owners", "tierRole": "STOPPED"}, FAIL, "nothing goes to its bucket"),
        ({"tierSkippedMessages": "7"}, WARN, "messages in its bucket that are damaged"),
        ({"tierSkippedMessages": "0"}, OK, "its bucket has 3 MiB"),
    ],
)
def test_a_bucket_that_takes_nothing_or_is_damaged_is_named(info: dict[str, str], state: str, text: str) -> None:
    usual = {
        "tierRole": "OWNER",
        "tierPath": "s3://b",
        "tierStoredBytes": str(3 << 20),
        "tierBehindBytes": str(1 << 20),
    }
    (found,) = buckets_take_files(Facts(brokers=(broker(info={**usual, "tierRetryInMs": "5", **info}),), now_ms=NOW_MS))
    assert found.state == state and found.text.startswith(text)
    assert bool(found.remedy) == (state in (WARN, FAIL))


def test_all_brokers_of_a_set_have_the_same_bucket() -> None:
    one = broker(info={"tierRole": "OWNER", "tierPath": "s3://b", "blocksDamaged": "0"})
    other = broker(1, info={"tierRole": "FOLLOWER", "tierPath": "s3://c", "blocksDamaged": "0"})
    assert states(buckets_take_files, one, other) == [OK, OK, FAIL]
    assert states(buckets_take_files, one, broker(1, info={"blocksDamaged": "0"})) == [OK, WARN]
    assert states(buckets_take_files, broker(info={"blocksDamaged": "0"})) == []


def test_disks_have_the_brokers_own_limits() -> None:
    limits = {"diskSpaceWarningLevelRatio": "99", "diskMaxUsedSpaceRatio": "95"}
    assert states(disks_have_space, broker(info={"commitLogDiskRatio": "0.94"}, config=limits)) == [OK]


def test_the_manual_explains_each_check() -> None:
    page = (ROOT / "docs" / "operate" / "watch.md").read_text(encoding="utf-8")
    table = page.partition("| check | looks at |")[2].partition("\n\n")[0]
    explained = re.findall(r"`([a-z-]+)`", "".join(row.split("|")[1] for row in table.splitlines() if row[:3] == "| `"))
    assert sorted(explained) == sorted(name for name, _check in CHECKS)


def test_settings_that_may_lose_messages() -> None:
    config = {"flushDiskType": "ASYNC_FLUSH", "brokerRole": "ASYNC_MASTER", "cleanFileForciblyEnable": "true"}
    assert states(settings_are_safe, broker(config=config)) == [INFO, INFO, INFO]
    both = Facts(brokers=(broker(config=config), broker(1, config=config)))
    assert [one.where for one in settings_are_safe(both)] == ["a:0, a:1", "a:0", "a:0, a:1"]
    (unflushed,) = settings_are_safe(Facts(brokers=(broker(config={"flushDiskType": "ASYNC_FLUSH"}),)))
    assert unflushed.text.endswith("loses about the last second of messages; with few messages, up to 10 s of them")
    in_a_group = {"enableDLegerCommitLog": "true", "dLegerPeers": "n0-h:1;n1-h:2;n2-h:3"}
    for flushed_each_time in ({"flushCommitLogLeastPages": "0"}, in_a_group):
        config = {"flushDiskType": "ASYNC_FLUSH", **flushed_each_time}
        (unflushed,) = settings_are_safe(Facts(brokers=(broker(config=config),)))
        assert unflushed.text.endswith("a power loss loses about the last second of messages")
    waits_for_none = {"flushDiskType": "SYNC_FLUSH", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}
    assert states(settings_are_safe, broker(config=waits_for_none)) == [WARN]
    assert states(settings_are_safe, broker(config=waits_for_none | {"inSyncReplicas": "2"})) == []


def test_a_set_needs_a_master() -> None:
    facts = Facts(brokers=(broker(1), broker(2), broker(name="b")))
    assert found(sets_have_masters, facts) == [(FAIL, "a")]


def test_a_sync_master_needs_a_slave() -> None:
    master = broker(config={"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"})
    assert states(slaves_keep_up, master) == [FAIL]
    assert states(slaves_keep_up, broker(config={"brokerRole": "ASYNC_MASTER"})) == []


def test_a_slave_that_is_away_leaves_the_set_without_safety_unless_another_is_left() -> None:
    slave = broker(1)
    gone = {f"slaveAwayMs_{slave.addr}": "65000"}
    (one,) = slaves_keep_up(Facts(brokers=(broker(info=gone),)))
    assert (one.state, one.where) == (FAIL, broker().where)
    assert f"its slave {slave.addr} has been away for 65 s, and no other is left" in one.text
    two = broker(2)
    lag = {f"slaveAckDiff_{two.addr}": "0"}
    assert states(slaves_keep_up, broker(info={**gone, **lag}), two) == [OK, WARN]
    # It is back, and is not connected to its master yet; Controllers know better.
    assert states(slaves_keep_up, broker(info={**gone, f"slaveAckDiff_{slave.addr}": "0"}), slave) == [OK]
    assert states(slaves_keep_up, broker(info=gone, config={"enableControllerMode": "true"})) == []


GROUP = {
    "enableDLegerCommitLog": "true", "dLegerPeers": "n0-h:1;n1-h:2;n2-h:3", "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "SYNC_FLUSH",
}  # fmt: skip


def test_a_dledger_group_needs_a_majority_and_says_when_one_more_would_be_too_many() -> None:
    members = [broker(number, config=GROUP) for number in range(3)]
    assert states(groups_have_majorities, *members) == []
    assert states(groups_have_majorities, *members[:2]) == [WARN]
    (one,) = groups_have_majorities(Facts(brokers=tuple(members[:2])))
    assert one.text == "2 of 3 members of its DLedger group answer: it survives the loss of no more"
    assert states(groups_have_majorities, members[0]) == [FAIL]
    assert states(groups_have_majorities, broker()) == []
    # A damaged entry, which keeps another member from catching up.
    told = broker(config=GROUP, info={"dledgerProblem": "entry 5"})
    (one,) = groups_have_majorities(Facts(brokers=(told, *members[1:])))
    assert (one.state, one.text) == (FAIL, "entry 5")
    # A member is neither a master of its own accord nor without slaves.
    assert states(settings_are_safe, members[0]) == states(slaves_keep_up, broker(config=GROUP)) == []


def test_a_slave_that_does_not_show_all_that_it_has_copied() -> None:
    (one,) = slaves_keep_up(Facts(brokers=(broker(1, info={"copiedLogProblem": "a record at 5"}),)))
    assert one.state == FAIL and "a record at 5" in one.text


@pytest.mark.parametrize(
    ("behind", "ms", "state"), [("0", "0", OK), ("20000000", "0", WARN), ("5", "20000", WARN), ("300000000", "0", FAIL)]
)
def test_slaves_that_lag(behind: str, ms: str, state: str) -> None:
    slave = broker(1)
    master = broker(info={f"slaveAckDiff_{slave.addr}": behind, f"slaveBehindMs_{slave.addr}": ms})
    assert states(slaves_keep_up, master, slave) == [state]


def test_slaves_of_rocketmq_lag_by_the_difference_of_their_logs() -> None:
    master, slave = broker(info={"commitLogMaxOffset": "300000000"}), broker(1, info={"commitLogMaxOffset": "1"})
    assert states(slaves_keep_up, master, slave) == [FAIL]
    assert states(slaves_keep_up, broker(), slave) == [WARN]
    assert states(slaves_keep_up, master, broker(1, error=AWAY)) == []


def test_groups_that_lag() -> None:
    known = (
        GroupFacts("g1", "t", 10, 0, 1),
        GroupFacts("g2", "t", 20_000, 0, 1),
        GroupFacts("g3", "t", 1, 3_600_000),
    )
    first, second = groups_keep_up(Facts(groups=known))
    assert (first.state, first.where) == (WARN, "g2 t")
    assert (second.state, second.where) == (WARN, "g3 t")
    assert "no consumer is connected" in second.text
    assert found(groups_keep_up, Facts(groups=known[:1], groups_left_out=3)) == [(OK, "groups"), (INFO, "groups")]
    assert found(groups_keep_up, Facts(groups=known[:1], max_lag=5)) == [(WARN, "g1 t")]


def test_a_group_whose_members_have_different_subscriptions_fails() -> None:
    one, other = frozenset({("t", "red")}), frozenset({("t", "blue")})
    facts = Facts(wanted={"g": {one: ["c1"], other: ["c2"]}, "h": {one: ["c1", "c2"]}})
    (finding,) = subscriptions_agree(facts)
    assert (finding.state, finding.where) == (FAIL, "g")
    assert "topic t is subscribed to as 'blue' by c2, as 'red' by c1" in finding.text
    assert found(subscriptions_agree, Facts(wanted={"h": facts.wanted["h"]})) == [(OK, "groups")]
    assert found(subscriptions_agree, Facts()) == []


def test_dead_letters_are_shown() -> None:
    (finding,) = nothing_is_dead(Facts(dead_letters={"g": 2, "h": 0}))
    assert (finding.state, finding.where) == (INFO, "g") and "mqadmin resendDlq -g g --dry-run" in finding.remedy


def test_a_check_that_goes_wrong_does_not_stop_the_others() -> None:
    def wrong(facts: Facts) -> Iterator[Finding]:
        yield Finding(OK, "x", "y")
        raise KeyError("z")

    checks = (("wrong", wrong), ("right", name_servers_answer))
    rows = [(name, one.state) for name, one in run_checks(Facts((ONE,), unanswered=(("g", "away"),)), checks)]
    assert rows == [("facts", WARN), ("wrong", WARN), ("right", OK)]


texts = st.text(max_size=8)
numbers = st.one_of(st.integers(-(2**70), 2**70).map(str), st.floats().map(str), texts)
tables = st.dictionaries(
    st.sampled_from(["bootTimestamp", "runtime", "commitLogDiskRatio", "commitLogMaxOffset", "brokerVersionDesc"]),
    numbers,
)
configs = st.dictionaries(
    st.sampled_from(["diskMaxUsedSpaceRatio", "haMaxGapNotInSync", "brokerRole", "inSyncReplicas"]), numbers
)


@given(tables, configs, st.integers(0, 2))
def test_no_answer_of_a_server_breaks_a_check(info: dict[str, str], config: dict[str, str], broker_id: int) -> None:
    facts = Facts((ONE,), (broker(info=info, config=config), broker(broker_id, info=info)))
    for _, check in CHECKS:
        assert all(one.text and one.state in (OK, INFO, WARN, FAIL) for one in check(facts))


def test_names_of_checks_are_unique() -> None:
    assert len({name for name, _ in CHECKS}) == len(CHECKS)


# --- Controller mode

LEADER, FOLLOWER = ControllerFacts("c:1", None, True, "c:1"), ControllerFacts("c:2", None, False, "c:1")
GONE = ControllerFacts("c:3", AWAY)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ((), []),
        ((LEADER, FOLLOWER, FOLLOWER), [OK, OK, OK]),
        ((LEADER, FOLLOWER, GONE), [OK, OK, WARN, FAIL]),
        ((ControllerFacts("c:1"), GONE, GONE), [WARN, WARN, FAIL]),
        ((LEADER, FOLLOWER, FOLLOWER, FOLLOWER, GONE), [OK, OK, OK, OK, WARN]),
        ((LEADER,), [OK]),
    ],
)
def test_controllers_need_a_majority(known: tuple[ControllerFacts, ...], expected: list[str]) -> None:
    assert [one.state for one in controllers_answer(Facts(controllers=known))] == expected


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (ReplicaSetFacts("a:1", {"a:1": True, "a:2": True, "a:3": True}), OK),
        (ReplicaSetFacts("a:1", {"a:1": True, "a:2": True}, {"a:3": False}), WARN),
        (ReplicaSetFacts("a:1", {"a:1": True, "a:2": True}, {"a:3": True}), WARN),
        (ReplicaSetFacts("a:1", {"a:1": True, "a:2": False, "a:3": True}), WARN),
        (ReplicaSetFacts("a:1", {"a:1": True}, {"a:2": False, "a:3": True}), FAIL),
        (ReplicaSetFacts("", {"a:1": False, "a:2": True}), FAIL),
        (ReplicaSetFacts("a:1", {"a:1": True}), OK),
    ],
)
def test_what_is_acknowledged_must_be_on_several_brokers(known: ReplicaSetFacts, state: str) -> None:
    (one,) = replicas_are_in_sync(Facts(replica_sets={"a": known}))
    assert (one.state, one.where) == (state, "a")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allAckInSyncStateSet": "false", "minInSyncReplicas": "1"}, "RocketMQ's choice"),
        ({"allAckInSyncStateSet": "true", "minInSyncReplicas": "0"}, "at least two brokers"),
        ({"allAckInSyncStateSet": "true", "minInSyncReplicas": "1"}, "its disk then has the only copy"),
        ({"allAckInSyncStateSet": "true", "minInSyncReplicas": "3"}, "at least 3 brokers"),
    ],
)
def test_the_choice_in_controller_mode_is_told_and_no_role_advised(options: dict[str, str], said: str) -> None:
    config = {"enableControllerMode": "true", "brokerRole": "ASYNC_MASTER", **options}
    (one,) = settings_are_safe(Facts(brokers=(broker(config=config),)))
    assert said in one.text and "SYNC_MASTER" not in one.text + one.remedy
    config["brokerRole"] = "SYNC_MASTER"
    assert list(slaves_keep_up(Facts(brokers=(broker(config=config),)))) == []
