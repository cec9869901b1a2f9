"""Clients: 34, 35, 220 - 223, 307, 309, 7103."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class ChallengeHeader(Header):
    """The answer to 7103. Old versions of Skylark, which have no challenge, and RocketMQ answer with an error."""

    challenge: str = required(read_text)


@dataclass(slots=True)
class HeartbeatResponseHeader(Header):
    """The answer to 34.

    ``subscription_differences`` is Skylark's own: for each of the client's groups whose members have different
    subscriptions a line, the group's name, a space, and who differs in what.
    """

    is_support_heart_beat_v2: bool | None = optional(read_flag, wire="IS_SUPPORT_HEART_BEAT_V2")
    is_sub_change: bool | None = optional(read_flag, wire="IS_SUB_CHANGE")
    subscription_differences: str | None = optional(read_text)


@dataclass(slots=True)
class UnregisterClientRequestHeader(Header):
    """35. Group names may be empty."""

    client_id: str = required(read_text, wire="clientID")
    producer_group: str | None = optional(read_text)
    consumer_group: str | None = optional(read_text)


@dataclass(slots=True)
class ResetOffsetRequestHeader(Header):
    """222 asks a broker to reset a group's offsets; with 220 it tells the group's consumers.

    ``timestamp`` -1 is the end of each queue. Without ``is_force`` offsets are only moved back. ``offset`` is for one
    queue.
    """

    group: str = required(read_text)
    topic: str = required(read_text)
    timestamp: int = required(read_long)
    is_force: bool = required(read_flag)
    queue_id: int | None = optional(read_int)
    offset: int | None = optional(read_long)


@dataclass(slots=True)
class GetConsumerStatusRequestHeader(Header):
    """223 asks a broker for the offsets of a group's consumers, or of the one that is named; it asks them with 221."""

    topic: str = required(read_text)
    group: str = required(read_text)
    client_addr: str | None = optional(read_text)


@dataclass(slots=True)
class GetConsumerRunningInfoRequestHeader(Header):
    """307: a broker passes it on to the client."""

    consumer_group: str = required(read_text)
    client_id: str = required(read_text)
    jstack_enable: bool | None = optional(read_flag)


@dataclass(slots=True)
class ConsumeMessageDirectlyRequestHeader(Header):
    """309: a broker adds its name and the message that the offset message id names, and passes it on."""

    consumer_group: str = required(read_text)
    client_id: str = required(read_text)
    msg_id: str | None = optional(read_text)
    topic: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)
