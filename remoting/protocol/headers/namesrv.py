"""NameServers: 100 - 105, 205, 216, 219, 224, 322, 327."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class PutKVConfigRequestHeader(Header):
    """100."""

    namespace: str = required(read_text)
    key: str = required(read_text)
    value: str = required(read_text)


@dataclass(slots=True)
class KVConfigRequestHeader(Header):
    """101 and 102: one key."""

    namespace: str = required(read_text)
    key: str = required(read_text)


@dataclass(slots=True)
class GetKVConfigResponseHeader(Header):
    """The answer to 101."""

    value: str | None = optional(read_text)


@dataclass(slots=True)
class NamespaceRequestHeader(Header):
    """219: all keys of a namespace."""

    namespace: str = required(read_text)


@dataclass(slots=True)
class RegisterBrokerRequestHeader(Header):
    """103. ``body_crc32`` 0 or absent is not checked.

    Between Skylark and Skylark it may come in parts, which have a number; the last one is marked. With a base the
    topics are those that changed since that version.
    """

    broker_name: str = required(read_text)
    broker_addr: str = required(read_text)
    cluster_name: str = required(read_text)
    ha_server_addr: str = required(read_text)
    broker_id: int = required(read_long)
    heartbeat_timeout_millis: int | None = optional(read_long)
    enable_acting_master: bool | None = optional(read_flag)
    compressed: bool | None = optional(read_flag)
    body_crc32: int | None = optional(read_int)
    part: int | None = optional(read_int)
    is_last_part: bool | None = optional(read_flag)
    base_state_version: int | None = optional(read_long)
    base_timestamp: int | None = optional(read_long)
    base_counter: int | None = optional(read_long)


@dataclass(slots=True)
class RegisterBrokerResponseHeader(Header):
    """The answer to 103: for a slave, the addresses of its master. The other fields are Skylark's own.

    ``contested_by``: the address of another broker that registers with the same name and id. ``takes_parts``: this
    NameServer accepts registrations in parts. ``whole_needed``: it lacks what the part or the change is based on.
    """

    ha_server_addr: str | None = optional(read_text)
    master_addr: str | None = optional(read_text)
    contested_by: str | None = optional(read_text)
    takes_parts: bool | None = optional(read_flag)
    whole_needed: bool | None = optional(read_flag)


@dataclass(slots=True)
class BrokerRequestHeader(Header):
    """104 and 322: one broker."""

    broker_name: str = required(read_text)
    broker_addr: str = required(read_text)
    cluster_name: str = required(read_text)
    broker_id: int = required(read_long)


@dataclass(slots=True)
class QueryDataVersionResponseHeader(Header):
    """The answer to 322: whether the broker must register fully."""

    changed: bool = required(read_flag)
    takes_parts: bool | None = optional(read_flag)


@dataclass(slots=True)
class GetRouteInfoRequestHeader(Header):
    """105."""

    topic: str = required(read_text)
    accept_standard_json_only: bool | None = optional(read_flag)


@dataclass(slots=True)
class BrokerNameRequestHeader(Header):
    """205 and 327: all topics of one broker name."""

    broker_name: str = required(read_text)


@dataclass(slots=True)
class WipeWritePermResponseHeader(Header):
    """The answer to 205."""

    wipe_topic_count: int = required(read_int)


@dataclass(slots=True)
class AddWritePermResponseHeader(Header):
    """The answer to 327."""

    add_topic_count: int = required(read_int)


@dataclass(slots=True)
class DeleteTopicFromNamesrvRequestHeader(Header):
    """216: in one cluster, or everywhere."""

    topic: str = required(read_text)
    cluster_name: str | None = optional(read_text)


@dataclass(slots=True)
class ClusterRequestHeader(Header):
    """224: topics of a cluster."""

    cluster: str = required(read_text)
