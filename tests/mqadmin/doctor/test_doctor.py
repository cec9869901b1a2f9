"""mqadmin doctor, at a cluster in this process and at fakes."""

import json
from typing import Any

from click.testing import CliRunner, Result

from skylark import blocking
from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.doctor.facts import BrokerFacts
from skylark.mqadmin.doctor.gather import ports_of
from skylark.mqcommon.errors import BrokerError, ConnectFailed, SkylarkError
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    SubscriptionData,
)
from skylark.sdk.testing import Cluster
from tests.mqadmin.fake import MASTER, SLAVE, World
from tests.mqadmin.fake import run as run_at

DEAD = "127.0.0.1:1"


def run(namesrv: str, *arguments: str) -> Result:
    return CliRunner().invoke(mqadmin, ["doctor", *arguments, "-n", namesrv], prog_name="mqadmin")


def findings(result: Result) -> list[tuple[str, str]]:
    rows: list[dict[str, Any]] = json.loads(result.stdout)["findings"]
    return [(row["check"], row["state"]) for row in rows]


def test_a_cluster_that_is_well_and_then_is_not() -> None:
    with Cluster(brokers=1) as cluster:
        cluster.create_topic("T")
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send_many("T", [b"x"] * 3)
        result = run(cluster.nameserver, "--output", "json")
        assert result.exit_code == 0, result.output
        found = findings(result)
        assert ("broker", "OK") in found
        assert ("clock", "OK") in found
        assert ("port", "OK") in found
        assert ("setting", "INFO") in found
        assert "FAIL" not in dict(found).values()

        result = run(f"{cluster.nameserver};{DEAD}", "--quiet")
        assert result.exit_code == 1
        assert "FAIL   nameserver   127.0.0.1:1" in result.stdout
        assert "-> start it, or take it out of namesrvAddr" in result.stdout
        assert "\nOK " not in result.stdout


def test_brokers_that_do_not_answer_and_those_that_answer_little() -> None:
    world = World(
        infos={MASTER: {}}, configs={MASTER: {}}, errors={("broker_runtime_info", SLAVE): ConnectFailed(SLAVE, "no")}
    )
    result = run_at(world, "doctor", "--output", "json")
    assert result.exit_code == 1
    found = findings(result)
    assert found.count(("broker", "OK")) == 1
    assert found.count(("broker", "FAIL")) == 1
    assert ("clock", "INFO") in found


def test_a_doctor_without_permission_says_what_it_could_not_see() -> None:
    refusal = BrokerError(16, "no permission", MASTER)
    errors: dict[tuple[str, ...], SkylarkError] = {(method,): refusal for method in ("broker_config", "consume_stats")}
    world = World(topics=["%RETRY%g", "%RETRY%h"], infos={MASTER: {}, SLAVE: {}}, errors=errors)
    result = run_at(world, "doctor", "--output", "json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["findings"]
    assert [row["state"] for row in rows if row["check"] == "broker"] == ["WARN", "WARN"]
    (group,) = [row for row in rows if row["check"] == "facts"]
    assert group["where"] == "g, h"
    assert "--credentials" in group["text"]


def test_members_are_asked_what_they_subscribe_to() -> None:
    def info(kind: str, tags: str) -> ConsumerRunningInfo:
        return ConsumerRunningInfo({"PROP_CONSUME_TYPE": kind}, [SubscriptionData("t", tags)])

    running = {
        "c1": info("CONSUME_PASSIVELY", "red"), "c2": info("CONSUME_PASSIVELY", "blue"),
        "c3": info("CONSUME_ACTIVELY", "green"),
    }  # fmt: skip
    world = World(
        topics=["%RETRY%g"], infos={MASTER: {}, SLAVE: {}}, configs={MASTER: {}, SLAVE: {}}, running=running,
        consumers={"g": ConsumerConnection([Connection(client_id) for client_id in running])},
    )  # fmt: skip
    result = run_at(world, "doctor", "--quiet")
    assert result.exit_code == 1
    assert "its members have different subscriptions" in result.stdout
    assert "topic t is subscribed to as 'blue' by c2, as 'red' by c1" in result.stdout
    assert "green" not in result.stdout


def test_the_ports_of_a_broker() -> None:
    master, slave = BrokerFacts("a", 0, "h:10911"), BrokerFacts("a", 1, "h:10911")
    assert ports_of(master, {}) == [("HA", "h:10912")]
    assert ports_of(slave, {"fastListenPort": "-1"}) == [("fast", "h:10909")]
    config = {"fastListenPort": "7", "haListenPort": "8", "brokerIP2": "i"}
    assert ports_of(master, config) == [("fast", "h:7"), ("HA", "i:8")]
    config = {"enableDLegerCommitLog": "true", "dLegerPeers": "n0-g:1;n1-g:2", "dLegerSelfId": "n1"}
    assert ports_of(slave, config) == [("DLedger", "g:2")]
    assert ports_of(slave, {"fastListenPort": "0"}) == []
