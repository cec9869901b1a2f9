"""A client that pops, on the wire, from a whole broker in this process."""

from dataclasses import dataclass
from typing import Any

from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.pop_info import PopHandle, parse_handle, parse_offset_info, pop_retry_topic, read_topic
from skylark.remoting.protocol.requests import pops
from skylark.remoting.protocol.requests.pops import (
    ANY_QUEUE,
    INIT_MIN,
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from tests.broker.running import send_request
from tests.support.waiting import until

MINUTE_MS = 60_000
# Short, but long enough for a pop and its acknowledgement on a busy machine where a test needs that.
SHORT_MS = 300
WAIT_MS = 20_000


@dataclass
class Popped:
    """A message, and its handle as RocketMQ's clients make it."""

    message: MessageExt
    handle: PopHandle
    count: int = 0

    @property
    def body(self) -> bytes:
        return self.message.body


class Popper:
    """A consumer of ``group``."""

    def __init__(self, client: RemotingClient, addr: str, group: str = "g", topic: str = "T") -> None:
        self.client, self.addr, self.group, self.topic = client, addr, group, topic
        self.at = Remote(client, addr, 30_000)
        self.rest = 0

    async def send(self, *bodies: bytes, queue_id: int = 0, properties: str = "") -> None:
        for body in bodies:
            request = send_request(self.topic, body, queue_id=queue_id, properties=properties)
            answer = await self.client.invoke(self.addr, request)
            assert answer.code == 0, answer.remark

    def request(self, **changes: Any) -> PopMessageRequestHeader:
        fields = {
            "consumer_group": self.group, "topic": self.topic, "queue_id": ANY_QUEUE, "max_msg_nums": 32,
            "invisible_time": MINUTE_MS, "poll_time": 0, "born_time": 0, "init_mode": INIT_MIN,
        }  # fmt: skip
        return PopMessageRequestHeader(**{**fields, **changes})

    async def pop(self, **changes: Any) -> list[Popped]:
        """The messages of one pop, in the order of the answer."""
        answer = await call(self.at, pops.POP_MESSAGE, self.request(**changes), wait_ms=changes.get("poll_time", 0))
        if answer.code != 0:
            return []
        return self.read(answer.header(), answer.body())

    def read(self, header: PopMessageResponseHeader, body: bytes) -> list[Popped]:
        """The messages of an answer, as a Java client makes their handles."""
        self.rest = header.rest_num
        starts = parse_offset_info(header.start_offset_info or "")
        offsets = parse_offset_info(header.msg_offset_info or "")
        counts = parse_offset_info(header.order_count_info or "")
        found = []
        for message in decode_messages(body, "broker-a"):
            own = message.properties.get("POP_CK")
            place = "0", str(message.queue_id)
            if own is not None:
                found.append(Popped(message, parse_handle(own)))
                continue
            assert str(message.queue_offset) in offsets[place].split(",")
            handle = PopHandle(
                int(starts[place]), header.pop_time, header.invisible_time, header.revive_qid, "0", "broker-a",
                message.queue_id, message.queue_offset,
            )  # fmt: skip
            count = counts.get(("0", f"qo{message.queue_id}%{message.queue_offset}"), counts.get(place, "0"))
            found.append(Popped(message, handle, int(count)))
        return found

    async def ack(self, popped: Popped) -> None:
        handle = popped.handle
        assert handle.offset is not None
        topic = read_topic(self.topic, self.group, handle.retry)
        header = AckMessageRequestHeader(self.group, topic, handle.queue_id, str(handle), handle.offset)
        await call(self.at, pops.ACK_MESSAGE, header)

    async def ack_many(self, *popped: Popped) -> None:
        """One entry for each check point."""
        entries: dict[tuple[Any, ...], BatchAck] = {}
        for one in popped:
            handle = one.handle
            key = handle.start_offset, handle.pop_time, handle.retry, handle.queue_id
            entry = entries.setdefault(key, BatchAck(
                0, self.group, handle.invisible_time, handle.pop_time, handle.queue_id, handle.retry,
                handle.revive_queue_id, handle.start_offset, self.topic,
            ))  # fmt: skip
            assert handle.offset is not None
            entry.bits |= 1 << (handle.offset - handle.start_offset)
        await call(
            self.at, pops.BATCH_ACK_MESSAGE, None, BatchAckMessageRequestBody(list(entries.values()), "broker-a")
        )

    async def hide(self, popped: Popped, invisible_ms: int) -> Popped:
        """Change the time; returns the message with its new handle."""
        handle = popped.handle
        assert handle.offset is not None
        topic = read_topic(self.topic, self.group, handle.retry)
        header = ChangeInvisibleTimeRequestHeader(
            self.group, topic, handle.queue_id, str(handle), handle.offset, invisible_ms
        )
        answer = (await call(self.at, pops.CHANGE_MESSAGE_INVISIBLETIME, header)).header()
        renewed = PopHandle(
            handle.offset, answer.pop_time, answer.invisible_time, answer.revive_qid, handle.retry, handle.broker_name,
            handle.queue_id, handle.offset,
        )  # fmt: skip
        return Popped(popped.message, renewed)

    async def until_held(self, count: int) -> None:
        """Return when ``count`` of the group's pops wait."""

        async def held() -> bool:
            header = PollingInfoRequestHeader(self.group, self.topic, ANY_QUEUE)
            return (await call(self.at, pops.POLLING_INFO, header)).header().polling_num == count

        await until(held, f"{count} held")

    async def raw(self, command: Command) -> Command:
        return await self.client.invoke(self.addr, command)

    @property
    def retry_topic(self) -> str:
        return pop_retry_topic(self.topic, self.group)


def bodies(popped: list[Popped]) -> list[bytes]:
    return [one.body for one in popped]
