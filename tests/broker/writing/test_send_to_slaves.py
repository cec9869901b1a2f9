"""Sends to a SYNC_MASTER: what is answered at once, what waits, and what is not stored at all."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.batch import encode_batch
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import FLAG_ONEWAY, Command
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE
from tests.broker.meta.support import MetadataDir, options
from tests.broker.running import send_request
from tests.broker.store.support import open_store
from tests.broker.writing.support import make_sends
from tests.support.caller import Caller

SLAVE = "10.0.0.1:1"


class SyncMaster:
    def __init__(self, *, max_waiting: int = 100, **changes: Any) -> None:
        self.options = options(broker_role="SYNC_MASTER", **changes)
        meta = MetadataDir(self.options)
        self.store = open_store(meta.fs, meta.clock)
        self.commits, self.acks, self.caller = LogWaits(), AckLedger(1 << 20), Caller()
        self.writer, self.durability, handlers = make_sends(
            self.store, meta.topics, self.options, meta.clock,
            commits=self.commits, acks=self.acks, max_waiting=max_waiting,
        )  # fmt: skip
        self.handlers = handlers.handlers()

    def send(self, body: bytes = b"hello", **fields: Any) -> Command | None:
        return self.send_command(send_request("t", body, **fields))

    def send_command(self, command: Command) -> Command | None:
        return self.handlers[command.code](self.caller.channel, command)

    def slave_has_all(self) -> None:
        self.acks.connected(SLAVE, trio.current_time())
        self.acks.acked(SLAVE, self.store.log.end)

    @property
    def codes(self) -> list[int]:
        return [answer.code for answer in self.caller.received()]


@pytest.fixture
async def master() -> AsyncIterator[SyncMaster]:
    master = SyncMaster()
    yield master
    master.store.close()


async def test_a_send_is_answered_when_the_slave_has_it(master: SyncMaster) -> None:
    master.slave_has_all()
    assert master.send() is None and master.codes == []
    master.slave_has_all()
    (answer,) = master.caller.received()
    assert answer.code == 0 and answer.ext is not None and answer.ext["queueOffset"] == "0"


async def test_without_a_slave_a_message_is_stored_and_the_client_is_told(master: SyncMaster) -> None:
    assert master.send() is None
    (answer,) = master.caller.received()
    assert (answer.code, answer.remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, None)
    assert answer.ext is not None and answer.ext["queueOffset"] == "0" and answer.ext["msgId"]
    assert (master.store.max_offset("t", 0), master.durability.not_available) == (1, 1)


async def test_a_silent_slave(master: SyncMaster, mock_clock: trio.testing.MockClock) -> None:
    master.slave_has_all()
    master.send()
    mock_clock.jump(2.9)
    master.durability.expire(trio.current_time())
    assert master.codes == []
    mock_clock.jump(0.2)
    master.durability.expire(trio.current_time())
    assert (master.codes, master.durability.timed_out) == ([ResponseCode.FLUSH_SLAVE_TIMEOUT], 1)
    assert master.caller.received()[0].ext is not None and master.store.max_offset("t", 0) == 1


async def test_with_a_late_disk(mock_clock: trio.testing.MockClock) -> None:
    master = SyncMaster(flush_disk_type="SYNC_FLUSH")
    master.slave_has_all()
    master.send()
    master.slave_has_all()
    mock_clock.jump(5.0)
    master.commits.expire(trio.current_time())
    assert master.codes == [ResponseCode.FLUSH_DISK_TIMEOUT]
    master.store.close()


async def test_who_does_not_want_to_wait_does_not(master: SyncMaster) -> None:
    answer = master.send(properties="a\x01b\x02WAIT\x01false")
    assert answer is not None and answer.code == 0
    assert master.send(properties="WAIT\x01falsely\x02") is None
    batch = send_request("t", encode_batch([(0, b"x", b"")]), properties="WAIT\x01false\x02", m=True)
    answer = master.send_command(batch)
    assert answer is not None and answer.code == 0


async def test_a_batch_waits_as_a_whole(master: SyncMaster) -> None:
    master.slave_has_all()
    batch = send_request("t", encode_batch([(0, b"x", b""), (0, b"y", b"")]))
    batch.code = SEND_BATCH_MESSAGE.code
    assert master.send_command(batch) is None
    assert master.codes == []
    master.slave_has_all()
    assert master.codes == [0]


async def test_a_oneway_send_waits_for_nobody(master: SyncMaster) -> None:
    master.slave_has_all()
    command = send_request("t", b"x")
    command.flag |= FLAG_ONEWAY
    master.send_command(command)
    assert len(master.durability) == 0 and master.store.max_offset("t", 0) == 1


async def test_no_message_is_kept_while_its_answer_waits(master: SyncMaster) -> None:
    master.slave_has_all()
    command = send_request("t", bytes(2000))
    master.send_command(command)
    assert (command.body, command.ext) == (b"", None)


@pytest.mark.parametrize(
    ("changes", "max_waiting", "code", "text"),
    [
        ({"min_in_sync_replicas": 2}, 100, ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
        ({}, 0, ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy"),
    ],
)
async def test_what_is_refused_is_not_stored(changes: dict[str, Any], max_waiting: int, code: int, text: str) -> None:
    master = SyncMaster(max_waiting=max_waiting, **changes)
    with pytest.raises(RequestRefused) as caught:
        master.send()
    assert caught.value.code == code and text in caught.value.remark
    assert master.store.log.end == 0
    answer = master.send(properties="WAIT\x01false\x02")
    assert answer is not None and answer.code == 0, "who waits for nobody is not refused"
    master.store.close()


async def test_a_dead_slave_does_not_fill_the_memory(mock_clock: trio.testing.MockClock) -> None:
    master = SyncMaster(max_waiting=20)
    master.slave_has_all()
    refused = 0
    for _ in range(100):
        try:
            master.send()
        except RequestRefused:
            refused += 1
    assert (len(master.durability), refused, master.codes) == (20, 80, [])
    mock_clock.jump(3.0)
    master.durability.expire(trio.current_time())
    assert master.codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 20
    master.send()
    assert len(master.durability) == 1
    master.store.close()
