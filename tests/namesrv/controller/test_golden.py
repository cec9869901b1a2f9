"""The recorded requests of Java brokers change the state as they changed the Java Controller's state."""

from collections.abc import Iterator

import orjson
import pytest

from skylark.namesrv.controller.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    Candidate,
    Change,
    CleanBrokerData,
    ElectMaster,
    RegisterBroker,
)
from skylark.namesrv.controller.replicas import BrokerSet, Replicas
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests import controller as requests
from skylark.remoting.protocol.requests.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    CONTROLLER_REGISTER_BROKER,
    RegisterBrokerToControllerResponseHeader,
)
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT
from tests.remoting.protocol.recorded_controller import Row, recorded_session

SECONDS_OF_A_LIFE = 5.0


class Player:
    """Turns recorded requests into changes; who is alive is told by the recorded heartbeats."""

    def __init__(self) -> None:
        self.replicas = Replicas()
        self.heard: dict[int, tuple[float, Candidate]] = {}

    def alive(self, now_s: float) -> tuple[Candidate, ...]:
        return tuple(each for at_s, each in self.heard.values() if now_s - at_s < SECONDS_OF_A_LIFE)

    def hear(self, row: Row) -> None:
        header = BROKER_HEARTBEAT.header(row.command)
        assert header.broker_id is not None and header.epoch is not None and header.max_offset is not None
        self.heard[header.broker_id] = (row.at_s, Candidate(header.broker_id, header.epoch, header.max_offset))

    def change(self, row: Row) -> Change | None:
        request, ids = row.command, tuple(each.broker_id for each in self.alive(row.at_s))
        match row.request_code:
            case CONTROLLER_APPLY_BROKER_ID.code:
                claim = requests.CONTROLLER_APPLY_BROKER_ID.header(request)
                return ApplyBrokerId(
                    claim.cluster_name, claim.broker_name, claim.applied_broker_id, claim.register_check_code
                )
            case CONTROLLER_REGISTER_BROKER.code:
                who = requests.CONTROLLER_REGISTER_BROKER.header(request)
                return RegisterBroker(who.broker_name, who.broker_id, who.broker_address)
            case CONTROLLER_ALTER_SYNC_STATE_SET.code:
                by = requests.CONTROLLER_ALTER_SYNC_STATE_SET.header(request)
                body = requests.CONTROLLER_ALTER_SYNC_STATE_SET.body(request)
                new_set, epoch = tuple(body.sync_state_set), body.sync_state_set_epoch
                return AlterSyncStateSet(by.broker_name, by.master_broker_id, by.master_epoch, new_set, epoch, ids)
            case CONTROLLER_ELECT_MASTER.code:
                vote = requests.CONTROLLER_ELECT_MASTER.header(request)
                alive = self.alive(row.at_s)
                return ElectMaster(vote.broker_name, vote.broker_id, vote.designate_elect, alive, False)
            case CLEAN_BROKER_DATA.code:
                clean = requests.CLEAN_BROKER_DATA.header(request)
                to_clean = tuple(map(int, (clean.broker_controller_ids_to_clean or "").split(";")))
                return CleanBrokerData(clean.broker_name, to_clean, ids, clean.is_clean_living_broker)
        return None


def check(row: Row, answer: Command, known: BrokerSet | None) -> None:
    """The recorded answer says what the state says now."""
    ext = {key: value for key, value in (answer.ext or {}).items() if key not in ("clusterName", "brokerName")}
    if answer.code != ResponseCode.SUCCESS or row.request_code == CONTROLLER_APPLY_BROKER_ID.code:
        return
    assert known is not None
    told = RegisterBrokerToControllerResponseHeader.from_ext(ext)
    if told.master_broker_id is not None:
        assert (told.master_broker_id, told.master_epoch) == (known.master, known.master_epoch), row.where
        assert told.master_address == known.address(known.master), row.where
    for name in ("syncStateSetEpoch", "newSyncStateSetEpoch"):
        assert int(ext.get(name, known.sync_state_set_epoch)) == known.sync_state_set_epoch, row.where
    if answer.body:
        body = requests.CONTROLLER_ALTER_SYNC_STATE_SET.body(answer)
        assert set(body.sync_state_set) == known.sync_state_set, row.where


def exchanges(name: str) -> Iterator[tuple[Row, Command | None]]:
    """Each request with its answer, at the time of the request."""
    rows = list(recorded_session(name))
    answers = {(row.conn, row.command.opaque): row.command for row in rows if not row.is_request}
    for row in rows:
        if row.is_request:
            yield row, answers.get((row.conn, row.command.opaque))


@pytest.mark.parametrize("name", ["controller", "three-controllers"])
def test_the_recorded_session(name: str) -> None:
    player = Player()
    played = set()
    for row, answer in exchanges(name):
        if row.request_code == BROKER_HEARTBEAT.code:
            player.hear(row)
            continue
        assert answer is not None
        change = player.change(row)
        broker_set = player.replicas.sets.get("broker-a")
        if name == "controller" and row.at_s > 84.5 and broker_set is not None and broker_set.master_epoch == 1:
            # Broker 1 was killed: its connection closed, and the Controller elected by itself.
            player.heard.pop(1, None)
            elected = player.replicas.change(ElectMaster("broker-a", None, False, player.alive(row.at_s), False))
            assert elected.code == ResponseCode.SUCCESS
        if change is not None:
            outcome = player.replicas.change(change)
            assert (outcome.code, outcome.remark) == (answer.code, answer.remark), row.where
            check(row, answer, outcome.broker_set)
        elif row.request_code == CONTROLLER_GET_REPLICA_INFO.code:
            check(row, answer, player.replicas.sets.get("broker-a"))
        elif row.request_code == CONTROLLER_GET_SYNC_STATE_DATA.code:
            body = orjson.loads(answer.body)["replicasInfoTable"].get("broker-a")
            known = player.replicas.sets["broker-a"]
            if body is not None:
                assert body["syncStateSetEpoch"] == known.sync_state_set_epoch, row.where
                assert {each["brokerId"] for each in body["inSyncReplicas"]} == known.sync_state_set, row.where
        played.add(row.request_code)
    assert CONTROLLER_ELECT_MASTER.code in played
