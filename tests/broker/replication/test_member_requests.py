"""905 and 906: members of a set among themselves."""

import pytest

from broker.identity import Identity
from broker.replication.known_master import KnownMaster, MasterAddress
from broker.replication.member_requests import MemberHandlers
from broker.replication.role import RoleMachine
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from remoting.protocol.requests.replication import EXCHANGE_BROKER_HA_INFO
from tests.broker.store.support import open_store, put
from tests.support.caller import Caller
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


class Set:
    """The handlers of one member."""

    def __init__(self, broker_id: int) -> None:
        self.store = open_store(MemoryFiles(), ManualClock())
        self.master = KnownMaster()
        self.asked = 0
        identity = Identity("c", "broker-a", broker_id, "127.0.0.1:10911", "127.0.0.1:10912")
        self.handlers = MemberHandlers(RoleMachine(broker_id), identity, self.store, self.master, self._ask).handlers()

    def _ask(self) -> None:
        self.asked += 1

    def told(self, code: int, **ext: object) -> Command:
        answer = self.handlers[code](Caller().channel, Command(code, ext))
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        return answer


@pytest.mark.parametrize("broker_id", [0, 1])
async def test_a_notice_is_a_reason_to_ask_and_no_more(broker_id: int) -> None:
    one = Set(broker_id)
    one.told(NOTIFY_MIN_BROKER_ID_CHANGE.code, minBrokerId=1, brokerName="broker-a", minBrokerAddr="x:1")
    assert one.asked == 1


async def test_a_master_says_where_it_is() -> None:
    master = Set(0)
    put(master.store, "T", 0, b"1")
    answer = master.told(EXCHANGE_BROKER_HA_INFO.code)
    assert answer.ext == {
        "masterHaAddress": "127.0.0.1:10912", "masterFlushOffset": 0, "masterAddress": "127.0.0.1:10911",
    }  # fmt: skip


async def test_a_slave_goes_where_its_returning_master_is() -> None:
    slave = Set(1)
    assert slave.master is not None
    changes: list[MasterAddress | None] = []
    slave.master.on_change.append(lambda: changes.append(slave.master.address if slave.master else None))
    for _ in range(2):
        answer = slave.told(EXCHANGE_BROKER_HA_INFO.code, masterAddress="m:1", masterHaAddress="m:2")
        assert answer.ext == {}
    assert changes == [MasterAddress("m:1", "m:2")]
    assert not slave.master.registered  # that it lives, NameServers say


async def test_a_slave_that_is_asked_or_told_half_says_nothing() -> None:
    slave = Set(1)
    assert slave.told(EXCHANGE_BROKER_HA_INFO.code).ext == {}
    slave.told(EXCHANGE_BROKER_HA_INFO.code, masterAddress="m:1")
    assert slave.master is not None
    assert slave.master.address is None
