"""Request 370 through a whole broker: what is taken back, and what is refused with RocketMQ's codes."""

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.message.ids import RecallHandle
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.sends import RECALL_MESSAGE
from tests.broker.running import running, send_request


def recall(topic: str, handle: str) -> Command:
    return Command(RECALL_MESSAGE.code, {"producerGroup": "g", "topic": topic, "recallHandle": handle})


async def test_a_message_that_waits_is_recalled() -> None:
    async with running() as (client, addr):
        plain = await client.invoke(addr, send_request("t", b"x"))
        assert plain.ext is not None and "recallHandle" not in plain.ext
        timed = send_request("t", b"x", properties="TIMER_DELAY_SEC\x0160\x02UNIQ_KEY\x01key\x02")
        sent = await client.invoke(addr, timed)
        assert sent.ext is not None
        answer = await client.invoke(addr, recall("t", sent.ext["recallHandle"]))
        assert (answer.code, answer.ext and answer.ext["msgId"]) == (ResponseCode.SUCCESS, "key")


BAD_HANDLES: list[tuple[str, RecallHandle | str, int, str]] = [
    ("nowhere", RecallHandle("t", "broker-a", 60_000, "k"), ResponseCode.TOPIC_NOT_EXIST, "not exist"),
    ("t", "junk", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
    ("t", RecallHandle("u", "broker-a", 60_000, "k"), ResponseCode.ILLEGAL_OPERATION, "topic not match"),
    ("t", RecallHandle("t", "broker-b", 60_000, "k"), ResponseCode.ILLEGAL_OPERATION, "service not available"),
    ("t", RecallHandle("t", "broker-a", -1, "k"), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
    ("t", RecallHandle("t", "broker-a", 300_000_000, "k"), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
]


async def test_what_cannot_be_recalled() -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("t", b"x"))
        for topic, handle, code, said in BAD_HANDLES:
            if isinstance(handle, RecallHandle):
                handle = handle._replace(slot_ms=SystemClock().now_ms() + handle.slot_ms).encode()
            answer = await client.invoke(addr, recall(topic, handle))
            assert (answer.code, said in (answer.remark or "")) == (code, True), answer


async def test_recalls_that_the_broker_does_not_take() -> None:
    async with running(recall_message_enable=False) as (client, addr):
        assert (await client.invoke(addr, recall("t", "x"))).code == ResponseCode.NO_PERMISSION
    async with running(broker_id=1, broker_role="SLAVE") as (client, addr):
        answer = await client.invoke(addr, recall("t", "x"))
        text = "recall failed, broker service not available"
        assert (answer.code, answer.remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, text)
