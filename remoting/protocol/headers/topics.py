"""Topics of a broker: 17, 21, 202, 215, 300, 351."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_text


@dataclass(slots=True)
class CreateTopicRequestHeader(Header):
    """17: create or change a topic. ``attributes`` is like "+k=v,-k"."""

    topic: str = required(read_text)
    default_topic: str = required(read_text)
    read_queue_nums: int = required(read_int)
    write_queue_nums: int = required(read_int)
    perm: int = required(read_int)
    topic_filter_type: str = required(read_text)
    order: bool = required(read_flag)
    topic_sys_flag: int | None = optional(read_int)
    attributes: str | None = optional(read_text)
    force: bool | None = optional(read_flag)


@dataclass(slots=True)
class GetAllTopicConfigRequestHeader(Header):
    """21: older callers send no header, and get all."""

    topic_seq: int | None = optional(read_int)
    data_version: str | None = optional(read_text)
    max_topic_num: int | None = optional(read_int)


@dataclass(slots=True)
class GetAllTopicConfigResponseHeader(Header):
    """How many topics there are."""

    total_topic_num: int | None = optional(read_int)


@dataclass(slots=True)
class TopicRequestHeader(Header):
    """202, 215, 217, 300: about one topic."""

    topic: str = required(read_text)


@dataclass(slots=True)
class GetTopicConfigRequestHeader(Header):
    """351. ``lo`` True: the configuration on this broker only, for static topics, which span several brokers."""

    topic: str = required(read_text)
    lo: bool | None = optional(read_flag)
