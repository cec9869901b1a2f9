"""A broker's conversation with the Controllers, in the order of steps that the daemon follows.

- An id, its address (1003), then who is the master (1004). Only that answer is the first news of `Decisions`, and no
  heartbeat goes out while `must_be_silent`.
- The lease counts from the sending of a heartbeat whose answer names this broker, in the epoch in which it leads.
- A new epoch: close all links, cut a part of a record, write the epoch down, begin a `SyncSet` of this broker alone,
  and only then take messages. The same epoch again: go on with the same `SyncSet`, as a question may be in doubt.
- The SyncStateSet is asked for when its epoch is known, one question at a time.
- With SYNC_FLUSH only what is flushed counts, at the master and in the reports of slaves.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from skylark.broker.replication.autoswitch.decisions import Decisions, News, Stand
from skylark.broker.replication.autoswitch.enrolment import EnrolmentStep, Identified, check_code, next_step
from skylark.broker.replication.autoswitch.sync_set import DECIDED, SyncSet
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.request import Answer
from skylark.remoting.protocol.requests.controller import (
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_REGISTER_BROKER,
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    GetNextBrokerIdRequestHeader,
    GetReplicaInfoRequestHeader,
    MasterHeader,
    RegisterBrokerToControllerRequestHeader,
    SyncStateSet,
)
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader
from tests.sim.controller.controllers import CLUSTER, NAME, TIMEOUT_MS, Caller

if TYPE_CHECKING:
    from tests.sim.controller.broker import Broker

Answered = Callable[[Answer[Any, Any] | None], None]

HEARTBEAT_S = 1.0
AGAIN_S = 0.5
ASK_S = 1.0
SET_S = 0.5


class Member:
    """One life of a broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._at = 0
        self._callers = [Caller(broker.name) for _ in broker.controllers]
        # Whether a question about the SyncStateSet waits for its answer.
        self._is_asking = False

    @property
    def _me(self) -> int:
        kept = self._broker.disk.kept
        assert kept is not None
        return kept.broker_id

    # An id, and what the Controller knows of this broker.

    def begin(self) -> None:
        disk = self._broker.disk
        match next_step(disk.kept, disk.temporary):
            case EnrolmentStep.ASK_NEXT_ID:
                self._call(CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdRequestHeader(CLUSTER, NAME), self._next_id)
            case EnrolmentStep.APPLY:
                found = disk.temporary
                assert found is not None
                claim = ApplyBrokerIdRequestHeader(CLUSTER, NAME, found.broker_id, found.check_code)
                self._call(CONTROLLER_APPLY_BROKER_ID, claim, self._applied)
            case EnrolmentStep.REGISTER:
                who = RegisterBrokerToControllerRequestHeader(CLUSTER, NAME, self._me, self._broker.addr)
                self._call(CONTROLLER_REGISTER_BROKER, who, self._registered)

    def _next_id(self, answer: Answer[Any, Any] | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            code = check_code(self._broker.addr, int(self._broker.now * 1000))
            self._broker.disk.temporary = Identified(CLUSTER, NAME, answer.header().next_broker_id, code)
        self._broker.wait(0.01 if answer is not None else AGAIN_S, self.begin)

    def _applied(self, answer: Answer[Any, Any] | None) -> None:
        disk = self._broker.disk
        if answer is not None:
            assert disk.temporary is not None
            if answer.code == ResponseCode.SUCCESS:
                disk.kept = disk.temporary._replace(check_code="")
            disk.temporary = None
        self._broker.wait(0.01 if answer is not None else AGAIN_S, self.begin)

    def _registered(self, answer: Answer[Any, Any] | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._broker.wait(AGAIN_S, self.begin)
        else:
            self._first_look()

    def _first_look(self) -> None:
        self._call(CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader(NAME), self._looked)

    def _looked(self, answer: Answer[Any, Any] | None) -> None:
        """While a former life of this broker is taken for the master, this one is silent, so that it is deposed."""
        broker = self._broker
        if answer is None or answer.code != ResponseCode.SUCCESS:
            broker.wait(AGAIN_S, self._first_look)
            return
        if not broker.has_decisions:
            broker.decisions = Decisions(self._me, broker.disk.last_epoch)
            broker.has_decisions = True
        self._told(answer.header())
        if broker.decisions.must_be_silent:
            broker.wait(AGAIN_S, self._first_look)
            return
        self._beat_again()
        for seconds, event in ((broker.poll_s, self._poll), (ASK_S, self._ask), (SET_S, self._alter)):
            broker.every(seconds, event)

    # Heartbeats and the lease.

    def _beat_again(self) -> None:
        self.beat()
        self._broker.wait(HEARTBEAT_S, self._beat_again)

    def beat(self) -> None:
        broker = self._broker
        assert not broker.decisions.must_be_silent
        sent_at = broker.now
        header = BrokerHeartbeatRequestHeader(
            CLUSTER, broker.addr, NAME, self._me, broker.disk.last_epoch, broker.safe_end,
            heartbeat_timeout_mills=TIMEOUT_MS, election_priority=broker.priority, is_electable=not broker.is_learner,
        )  # fmt: skip
        self._call(BROKER_HEARTBEAT, header, lambda answer: self._beat_answered(answer, sent_at))

    def _beat_answered(self, answer: Answer[Any, Any] | None, sent_at: float) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        header = answer.header()
        self._told(header)
        broker = self._broker
        if (header.master_broker_id, header.master_epoch) == (self._me, broker.epoch):
            broker.lease.answered(sent_at)

    # Who leads.

    def _poll(self) -> None:
        self._call(CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader(NAME), self._polled)

    def _polled(self, answer: Answer[Any, Any] | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._told(answer.header())
            self._told_set(answer.header(), answer.body())

    def _ask(self) -> None:
        if self._broker.decisions.asks_for_election and not self._broker.is_learner:
            header = ElectMasterRequestHeader(NAME, CLUSTER, self._me, False)
            self._call(CONTROLLER_ELECT_MASTER, header, self._elected)

    def _elected(self, answer: Answer[Any, Any] | None) -> None:
        if answer is not None and answer.code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            self._told(answer.header())

    def notified(self, header: MasterHeader, body: SyncStateSet) -> None:
        if self._broker.has_decisions:
            self._told(header)
            self._told_set(header, body)

    def _told(self, header: MasterHeader) -> None:
        if header.master_epoch is None:
            return
        broker = self._broker
        decision = broker.decisions.take_news(
            News(header.master_broker_id, header.master_address or "", header.master_epoch)
        )
        if decision is not None:
            broker.decided(decision)

    # The SyncStateSet.

    def _told_set(self, header: MasterHeader, body: SyncStateSet) -> None:
        broker = self._broker
        if broker.sync is not None and (header.master_broker_id, header.master_epoch) == (self._me, broker.epoch):
            broker.sync.update(body.sync_state_set, body.sync_state_set_epoch, broker.safe_end, broker.now)
            broker.confirmed()

    def _alter(self) -> None:
        broker = self._broker
        sync = broker.sync
        if sync is None or broker.decisions.now.stand is not Stand.LEADING or sync.epoch < 0 or self._is_asking:
            return
        wanted = sync.wanted(broker.now)
        if wanted is None:
            return
        sync.propose(wanted)
        self._is_asking = True
        header = AlterSyncStateSetRequestHeader(NAME, self._me, broker.epoch)
        body = encode_body(SyncStateSet(sorted(wanted), sync.epoch))
        self._call(CONTROLLER_ALTER_SYNC_STATE_SET, header, lambda answer: self._altered(answer, sync), body)

    def _altered(self, answer: Answer[Any, Any] | None, sync: SyncSet) -> None:
        broker = self._broker
        self._is_asking = False
        if broker.sync is not sync:
            return
        if answer is None:
            sync.unanswered()
        elif answer.code == ResponseCode.SUCCESS:
            body = answer.body()
            sync.update(body.sync_state_set, body.sync_state_set_epoch, broker.safe_end, broker.now)
            broker.confirmed()
        elif answer.code in DECIDED:
            sync.refused(broker.now)
            broker.confirmed()
            self._poll()
        else:
            sync.unanswered()

    # Requests.

    def _call(self, what: Any, header: Any, done: Answered, body: bytes = b"") -> None:
        broker, at = self._broker, self._at
        network, controller, caller = broker.network, broker.controllers[at], self._callers[at]
        request = what.command(header)
        request.body = body
        is_over = False

        def over(answer: Command | None) -> None:
            nonlocal is_over
            if not is_over and broker.member is self:
                is_over = True
                if answer is not None and answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
                    answer = None
                if answer is None and self._at == at:
                    self._at = (at + 1) % len(self._callers)
                done(None if answer is None else Answer(what, answer))

        def reply(answer: Command) -> None:
            network.carry(controller, broker, lambda: over(answer))

        may_repeat = what is not CONTROLLER_ALTER_SYNC_STATE_SET
        network.carry(broker, controller, lambda: controller.handle(caller, request, reply), may_repeat=may_repeat)
        broker.wait(broker.call_s, lambda: over(None))

    def closed(self) -> None:
        """Close the connections, as the kernel does when this life of the process is over."""
        broker = self._broker
        if broker.disk.kept is None:
            return
        key = (NAME, broker.disk.kept.broker_id)
        for controller, caller in zip(broker.controllers, self._callers, strict=True):
            broker.network.carry(broker, controller, partial(controller.closed, key, caller, broker))
