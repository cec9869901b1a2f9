"""Names with a meaning: topics, groups and users that may be used, RocketMQ's own topics, permission bits.

The texts of refusals are RocketMQ's: tools and clients show them to users.
Neighbours: the send and admin handlers of the broker, the SDK's checks before a send.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from skylark.mqcommon.errors import RequestRefused

MASTER_ID = 0  # the broker id of a master; slaves have 1 and up

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_PRIORITY = 8
PERM_READ_WRITE = PERM_READ | PERM_WRITE

AUTO_CREATE_TOPIC = "TBW102"  # a topic that a send creates gets its settings
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
# Followed by a cluster's name: the check points of popped messages. This group's offsets say how far they are read.
REVIVE_TOPIC_PREFIX = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
# Followed by a static topic's name: how far messages that came late into queues that have moved were sent on.
LATE_TOPIC_PREFIX = f"{SYSTEM_TOPIC_PREFIX}LATE_"
LATE_GROUP = "CID_RMQ_SYS_LATE_GROUP"
# Which dead letters tools have sent again by choice: sdk/admin/resent_marks.py. RocketMQ's brokers lack the topic.
DLQ_RESENT_TOPIC = f"{SYSTEM_TOPIC_PREFIX}DLQ_RESENT"
# The group with which administrators' tools read. Its offsets say how far a tool came; no message waits for it.
TOOLS_GROUP = "TOOLS_CONSUMER"
# Followed by a broker's name: a topic whose route tells RocketMQ's brokers which members of their set are alive.
MEMBER_GROUP_PREFIX = f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_"

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"

TOPIC_MAX_LENGTH = 127
RETRY_TOPIC_MAX_LENGTH = 255
GROUP_MAX_LENGTH = 255
USERNAME_MAX_LENGTH = 255

# The most queues of a topic: with more, every loop over them would take long.
MAX_QUEUE_NUMS = 65_536
MAX_PERM = PERM_READ | PERM_WRITE | PERM_INHERIT

DELAY_LEVELS = 18

_ALLOWED = "^[%|a-zA-Z0-9_-]+$"
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
# Between the group and the topic in the names of some retry topics of popped messages.
_RETRY_SEPARATOR = "+"
_INVALID_PARAMETER = 29
_NO_PERMISSION = 16

_SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TRACE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
    }
)
# RocketMQ's system groups: those listed in its tool, and all with this prefix.
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", TOOLS_GROUP, "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL",
    }
)  # fmt: skip
_UNSENDABLE_TOPICS = _SYSTEM_TOPICS - {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}


class SystemTopic(NamedTuple):
    """A topic that every broker creates when it starts."""

    name: str
    queue_nums: int
    perm: int


def system_topics(
    cluster_name: str,
    broker_name: str,
    *,
    auto_create_queue_nums: int | None,
    cluster_topic: bool = True,
    broker_topic: bool = True,
    trace_topic: str = "",
) -> list[SystemTopic]:
    """The topics of one broker: the list of RocketMQ 5.3, and DLQ_RESENT_TOPIC.

    ``cluster_topic`` and ``broker_topic``: whether clients may use the topic named after the cluster, or the broker.
    ``auto_create_queue_nums`` is None when sends do not create topics.
    """
    read_write, inherited = PERM_READ_WRITE, PERM_READ_WRITE | PERM_INHERIT
    topics = [
        SystemTopic(SELF_TEST_TOPIC, 1, read_write),
        SystemTopic(BENCHMARK_TOPIC, 1024, read_write),
        SystemTopic(cluster_name, 16, inherited if cluster_topic else PERM_INHERIT),
        SystemTopic(broker_name, 1, inherited if broker_topic else PERM_INHERIT),
        SystemTopic(OFFSET_MOVED_TOPIC, 1, read_write),
        SystemTopic(SCHEDULE_TOPIC, DELAY_LEVELS, read_write),
        SystemTopic(reply_topic(cluster_name), 1, read_write),
        SystemTopic(TRANS_HALF_TOPIC, 1, read_write),
        SystemTopic(TRANS_OP_TOPIC, 1, read_write),
        SystemTopic(TIMER_TOPIC, 1, read_write),
        SystemTopic(f"{REVIVE_TOPIC_PREFIX}{cluster_name}", 8, read_write),
        SystemTopic(DLQ_RESENT_TOPIC, 1, read_write),
        SystemTopic(f"{MEMBER_GROUP_PREFIX}{broker_name}", 1, PERM_INHERIT),
    ]
    if auto_create_queue_nums is not None:
        topics.append(SystemTopic(AUTO_CREATE_TOPIC, auto_create_queue_nums, inherited))
    if trace_topic:
        topics.append(SystemTopic(trace_topic, 1, read_write))
    return topics


@lru_cache(maxsize=4_096)
def check_topic(topic: str) -> None:
    """RequestRefused when ``topic`` is not a topic name."""
    if not topic.strip():
        raise RequestRefused(_INVALID_PARAMETER, "The specified topic is blank.")
    plain = topic.replace(_RETRY_SEPARATOR, "", 1) if is_retry_topic(topic) else topic
    if not _LEGAL_NAME.fullmatch(plain):
        text = f"The specified topic contains illegal characters, allowing only {_ALLOWED}"
        raise RequestRefused(_INVALID_PARAMETER, text)
    longest = RETRY_TOPIC_MAX_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_MAX_LENGTH
    if len(topic) > longest:
        raise RequestRefused(_INVALID_PARAMETER, "The specified topic is longer than topic max length.")


def check_topic_is_users(topic: str) -> None:
    """RequestRefused when ``topic`` is RocketMQ's own, which nobody may create, change or delete."""
    if is_system_topic(topic):
        raise RequestRefused(_INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def check_topic_is_sendable(topic: str) -> None:
    """RequestRefused when only the broker itself writes to ``topic``."""
    if topic in _UNSENDABLE_TOPICS:
        raise RequestRefused(_NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")


def is_obeyed_by_brokers(topic: str) -> bool:
    """Whether brokers act on the messages of this topic. Sends to it are allowed, as other brokers send there."""
    return topic == TIMER_TOPIC or topic.startswith(REVIVE_TOPIC_PREFIX)


@lru_cache(maxsize=4_096)
def check_group(group: str) -> None:
    """RequestRefused when ``group`` is not a group name."""
    if not group.strip():
        raise RequestRefused(_INVALID_PARAMETER, "the specified group is blank")
    if len(group) > GROUP_MAX_LENGTH:
        text = f"the specified group is longer than group max length {GROUP_MAX_LENGTH}."
        raise RequestRefused(_INVALID_PARAMETER, text)
    if not _LEGAL_NAME.fullmatch(group):
        text = f"the specified group[{group}] contains illegal characters, allowing only {_ALLOWED}"
        raise RequestRefused(_INVALID_PARAMETER, text)


def username_fault(name: str) -> str | None:
    """Why ``name`` can be no user's name; None when it can be one.

    A name is checked wherever a caller gives one, before a server is asked about it: otherwise a stranger could choose
    what a proxy or a console signs, such as the body of another request.
    """
    if not name:
        return "The username is blank: give one"
    if len(name) > USERNAME_MAX_LENGTH:
        return f"The username has {len(name)} characters; {USERNAME_MAX_LENGTH} are the most"
    if not name.isprintable() or any(each.isspace() or each in ":,*" for each in name):
        return f"The username {name!r} has blanks, or one of : , *, which mean something else in policies"
    return None


def is_system_topic(topic: str) -> bool:
    """Whether RocketMQ reserves the name on every cluster; topics named after a cluster or broker do not count."""
    return topic in _SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Whether RocketMQ or its tools made the group for themselves."""
    return name in _SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_light(name: str) -> bool:
    """Whether ``name`` is of a light queue, or of a group that reads light queues: these need no configuration."""
    return name.startswith(LMQ_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    """The topic in which messages that ``group`` could not consume wait for their next delivery."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of the group's dead letters: messages that it could not consume in all their deliveries."""
    return DLQ_PREFIX + group


def can_have_retry_topic(group: str) -> bool:
    """Whether a record can hold the name of the group's retry topic, which is longer by a prefix."""
    return len(retry_topic(group).encode()) <= RETRY_TOPIC_MAX_LENGTH


def reply_topic(cluster_name: str) -> str:
    return f"{cluster_name}_REPLY_TOPIC"


def perm_text(perm: int) -> str:
    """``6`` -> ``RW-``, ``7`` -> ``RWX``."""
    bits = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    return "".join(letter if perm & bit else "-" for bit, letter in bits)
