"""What each request needs: the resources that it is about, and the actions, one of which is enough. Pure.

The table is RocketMQ's (its annotations of headers), with these differences. A request that RocketMQ does not list
needs Update or Get of the cluster; there a signature is enough. Offsets of queues need Sub or Get, as consumers ask for
them, too. A retry topic stands for its group, also when it is pulled. A message by its id needs Get of the cluster, as
its topic is not known before it is read.
Fields are taken as the handlers take them: 310 and 320 have short names, 10 long ones.
Neighbours: users/ (ACL 2.0) and accounts/ (ACL 1.0) decide with it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mqcommon.message.properties import LIGHT_QUEUES, find_property
from mqcommon.names import RETRY_PREFIX, is_retry_topic
from remoting.protocol.bounded_body import BodyLimits
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command, ext_text
from remoting.protocol.requests.clients import CHECK_CLIENT_CONFIG, HEART_BEAT
from remoting.protocol.requests.consuming import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ
from remoting.protocol.requests.groups import (
    QUERY_ASSIGNMENT,
    SET_MESSAGE_REQUEST_MODE,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
)
from remoting.protocol.requests.pops import BATCH_ACK_MESSAGE
from remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC_LIST

#: The kinds of resources.
CLUSTER: Final = "Cluster"
TOPIC: Final = "Topic"
GROUP: Final = "Group"
#: Requests of NameServers, which have no account here. The broker only asks the NameServers then.
FROM_NAMESERVERS: Final = (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,)


class Need(NamedTuple):
    """One of ``actions`` on a resource. The name of a cluster is left empty: it is that of the broker."""

    kind: str
    name: str
    actions: tuple[str, ...]


Actions = tuple[str, ...]
Needs = Callable[[Command], list[Need]]

_PUB: Final[Actions] = ("Pub",)
_SUB: Final[Actions] = ("Sub",)
_GET: Final[Actions] = ("Get",)
_CREATE: Final[Actions] = ("Create",)
_UPDATE: Final[Actions] = ("Update",)
_DELETE: Final[Actions] = ("Delete",)
_SUB_GET: Final[Actions] = ("Sub", "Get")
_SUB_UPDATE: Final[Actions] = ("Sub", "Update")
# The handlers check the same bodies against limits that are as large, or smaller.
_LARGE: Final = BodyLimits(max_bytes=1 << 20, max_entries=40_000)
# Separates a group from the topic in the names of retry topics of pops, by their version.
_SEPARATORS: Final = ("+", "_")


def needs_of(request: Command) -> list[Need]:
    """What ``request`` needs. Raises RequestRefused when its body cannot be read."""
    return _BY_CODE.get(request.code, _update_cluster)(request)


def needs_about(code: int, topic: str, group: str) -> list[Need]:
    """What a request ``code`` about the topic and the group needs; one of the two may be empty, and is left out."""
    ext = {**dict.fromkeys(_TOPIC_FIELDS, topic), **dict.fromkeys(_GROUP_FIELDS, group)}
    found = _BODIES.get(code, _BY_CODE.get(code, _update_cluster))(Command(code, ext))
    return [need for need in found if need.name or need.kind == CLUSTER]


def to_consume(topic: str) -> list[Need]:
    """What consuming the topic needs of it. Messages are read, so a retry topic is that of its whole name."""
    return [_topic(topic, _SUB)]


def to_send(topic: str) -> list[Need]:
    """What a send to the topic needs."""
    return [Need(TOPIC, topic, _PUB)]


def _text(ext: Mapping[str, Any] | None, name: str) -> str:
    value = ext.get(name) if ext else None
    return value if type(value) is str else "" if value is None else ext_text(value)


def _topic(name: str, actions: Actions, group: str = "") -> Need:
    """A topic. A retry topic stands for its group; that of ``group`` may have the name of a topic behind.

    ``%RETRY%a_b`` may be of group a_b, or of group a for pops of topic b. Give ``group`` only where no message is read:
    else members of a could read the messages of a_b.
    """
    if not is_retry_topic(name):
        return Need(TOPIC, name, actions)
    of = name.removeprefix(RETRY_PREFIX)
    if group and of.startswith(tuple(group + separator for separator in _SEPARATORS)):
        of = group
    return Need(GROUP, of.partition(_SEPARATORS[0])[0], actions)


def _group(name: str, actions: Actions) -> Need:
    return Need(GROUP, name.removeprefix(RETRY_PREFIX), actions)


def _update_cluster(request: Command) -> list[Need]:
    return [Need(CLUSTER, "", _UPDATE)]


def _get_cluster(request: Command) -> list[Need]:
    return [Need(CLUSTER, "", _GET)]


def _send(field: str, properties_field: str) -> Needs:
    """A retry topic needs Sub of its group: a consumer gives a message back. Each light queue needs Pub of its own."""

    def needs(request: Command) -> list[Need]:
        name = _text(request.ext, field)
        found = [_topic(name, _SUB)] if is_retry_topic(name) else [Need(TOPIC, name, _PUB)]
        properties = _text(request.ext, properties_field)
        if LIGHT_QUEUES in properties:
            names = find_property(properties.encode("utf-8", "replace"), LIGHT_QUEUES.encode()) or b""
            found += [Need(TOPIC, each, _PUB) for each in dict.fromkeys(names.decode().split(",")) if each]
        return found

    return needs


def _on_topic(actions: Actions, field: str = "topic") -> Needs:
    return lambda request: [_topic(_text(request.ext, field), actions)]


def _on_group(actions: Actions, field: str = "consumerGroup") -> Needs:
    return lambda request: [_group(_text(request.ext, field), actions)]


def _on_both(actions: Actions, group_field: str = "consumerGroup") -> Needs:
    """The topic, if there is one, and the group."""

    def needs(request: Command) -> list[Need]:
        group, topic = _text(request.ext, group_field), _text(request.ext, "topic")
        found = [_group(group, actions)]
        return [*found, _topic(topic, actions, group)] if topic else found

    return needs


def _pull(request: Command) -> list[Need]:
    """Messages are read, so a retry topic is that of its whole name, see `_topic`."""
    topic = _text(request.ext, "topic")
    found = [_group(_text(request.ext, "consumerGroup"), _SUB)]
    return [*found, _topic(topic, _SUB)] if topic else found


def _end_of_transaction(request: Command) -> list[Need]:
    """The topic, if it is named: older clients do not. The handler asks for the half's own topic, see `to_send`."""
    topic = _text(request.ext, "topic")
    return [Need(TOPIC, topic, _PUB)] if topic else []


def _heartbeat(request: Command) -> list[Need]:
    found = []
    for consumer in HEART_BEAT.body(request, _LARGE).consumer_data_set:
        found.append(_group(consumer.group_name, _SUB))
        found += [_topic(each.topic, _SUB, consumer.group_name) for each in consumer.subscription_data_set]
    return found


def _unregister(request: Command) -> list[Need]:
    group = _text(request.ext, "consumerGroup")
    return [_group(group, _SUB)] if group else []


def _check_client(request: Command) -> list[Need]:
    body = CHECK_CLIENT_CONFIG.body(request)
    return [_group(body.group, _SUB), _topic(body.subscription_data.topic, _SUB, body.group)]


def _lock(request: Command) -> list[Need]:
    body = (LOCK_BATCH_MQ if request.code == RequestCode.LOCK_BATCH_MQ else UNLOCK_BATCH_MQ).body(request, _LARGE)
    topics = dict.fromkeys(queue.topic for queue in body.mq_set)
    return [_group(body.consumer_group, _SUB), *(_topic(each, _SUB, body.consumer_group) for each in topics)]


def _batch_ack(request: Command) -> list[Need]:
    acks = dict.fromkeys((ack.consumer_group, ack.topic) for ack in BATCH_ACK_MESSAGE.body(request, _LARGE).acks)
    return [need for group, topic in acks for need in (_group(group, _SUB), _topic(topic, _SUB, group))]


def _assignment(request: Command) -> list[Need]:
    body = QUERY_ASSIGNMENT.body(request)
    return [_group(body.consumer_group, _SUB), _topic(body.topic, _SUB, body.consumer_group)]


def _mode(request: Command) -> list[Need]:
    body = SET_MESSAGE_REQUEST_MODE.body(request)
    return [_group(body.consumer_group, _UPDATE), _topic(body.topic, _UPDATE, body.consumer_group)]


def _create_topics(request: Command) -> list[Need]:
    sent = UPDATE_AND_CREATE_TOPIC_LIST.body(request).topic_config_list
    return [_topic(config.topic_name, _CREATE) for config in sent]


def _create_group(request: Command) -> list[Need]:
    return [_group(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.body(request).group_name, _CREATE)]


def _create_groups(request: Command) -> list[Need]:
    sent = UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.body(request).group_config_list
    return [_group(config.group_name, _CREATE) for config in sent]


def _clone(request: Command) -> list[Need]:
    ext = request.ext
    return [_group(_text(ext, "srcGroup"), _GET), _group(_text(ext, "destGroup"), _UPDATE)]


_R: Final = RequestCode
_BY_CODE: Final[Mapping[int, Needs]] = {
    # --- clients
    _R.SEND_MESSAGE: _send("topic", "properties"),
    _R.SEND_MESSAGE_V2: _send("b", "i"),
    _R.SEND_BATCH_MESSAGE: _send("b", "i"),
    _R.SEND_REPLY_MESSAGE: _send("topic", "properties"),
    _R.SEND_REPLY_MESSAGE_V2: _send("b", "i"),
    _R.RECALL_MESSAGE: _on_topic(_PUB),
    _R.END_TRANSACTION: _end_of_transaction,
    _R.CONSUMER_SEND_MSG_BACK: _on_group(_SUB, "group"),
    _R.PULL_MESSAGE: _pull,
    _R.LITE_PULL_MESSAGE: _pull,
    _R.POP_MESSAGE: _on_both(_SUB),
    _R.PEEK_MESSAGE: _on_both(_SUB),
    _R.ACK_MESSAGE: _on_both(_SUB),
    _R.BATCH_ACK_MESSAGE: _batch_ack,
    _R.CHANGE_MESSAGE_INVISIBLETIME: _on_both(_SUB),
    _R.NOTIFICATION: _on_both(_SUB),
    _R.POLLING_INFO: _on_both(_SUB_GET),
    _R.HEART_BEAT: _heartbeat,
    _R.UNREGISTER_CLIENT: _unregister,
    _R.CHECK_CLIENT_CONFIG: _check_client,
    _R.GET_CONSUMER_LIST_BY_GROUP: _on_group(_SUB_GET),
    _R.QUERY_CONSUMER_OFFSET: _on_both(_SUB_GET),
    _R.UPDATE_CONSUMER_OFFSET: _on_both(_SUB_UPDATE),
    _R.LOCK_BATCH_MQ: _lock,
    _R.UNLOCK_BATCH_MQ: _lock,
    _R.QUERY_ASSIGNMENT: _assignment,
    _R.QUERY_MESSAGE: _on_topic(_SUB_GET),
    _R.SEARCH_OFFSET_BY_TIMESTAMP: _on_topic(_SUB_GET),
    _R.GET_MAX_OFFSET: _on_topic(_SUB_GET),
    _R.GET_MIN_OFFSET: _on_topic(_SUB_GET),
    _R.GET_EARLIEST_MSG_STORETIME: _on_topic(_SUB_GET),
    # --- administrators: topics and groups
    _R.UPDATE_AND_CREATE_TOPIC: _on_topic(_CREATE),
    _R.UPDATE_AND_CREATE_TOPIC_LIST: _create_topics,
    _R.DELETE_TOPIC_IN_BROKER: _on_topic(_DELETE),
    _R.GET_TOPIC_CONFIG: _on_topic(_GET),
    _R.GET_TOPIC_STATS_INFO: _on_topic(_GET),
    _R.QUERY_TOPIC_CONSUME_BY_WHO: _on_topic(_GET),
    _R.QUERY_CONSUME_QUEUE: _on_topic(_GET),
    _R.QUERY_CORRECTION_OFFSET: _on_topic(_GET),
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _create_group,
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _create_groups,
    _R.DELETE_SUBSCRIPTIONGROUP: _on_group(_DELETE, "groupName"),
    _R.GET_SUBSCRIPTIONGROUP_CONFIG: _on_group(_GET, "group"),
    _R.QUERY_TOPICS_BY_CONSUMER: _on_group(_GET, "group"),
    _R.GET_CONSUMER_CONNECTION_LIST: _on_group(_GET),
    _R.GET_PRODUCER_CONNECTION_LIST: _on_group(_GET, "producerGroup"),
    _R.GET_CONSUMER_RUNNING_INFO: _on_group(_GET),
    _R.GET_CONSUME_STATS: _on_both(_GET),
    _R.QUERY_CONSUME_TIME_SPAN: _on_both(_GET, "group"),
    _R.INVOKE_BROKER_TO_RESET_OFFSET: _on_both(_UPDATE, "group"),
    _R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _on_both(_GET, "group"),
    _R.CLONE_GROUP_OFFSET: _clone,
    _R.SET_MESSAGE_REQUEST_MODE: _mode,
    # --- administrators and slaves: the broker
    **dict.fromkeys(
        (
            _R.VIEW_MESSAGE_BY_ID, _R.CONSUME_MESSAGE_DIRECTLY, _R.GET_ALL_TOPIC_CONFIG,
            _R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _R.GET_BROKER_CONFIG, _R.GET_BROKER_RUNTIME_INFO,
            _R.GET_ALL_CONSUMER_OFFSET, _R.GET_ALL_DELAY_OFFSET, _R.GET_TIMER_CHECK_POINT, _R.GET_TIMER_METRICS,
            _R.GET_ALL_MESSAGE_REQUEST_MODE, _R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, _R.VIEW_BROKER_STATS_DATA,
            _R.GET_BROKER_CONSUME_STATS, _R.GET_ALL_PRODUCER_INFO, _R.GET_BROKER_HA_STATUS, _R.WATCH_METADATA,
            _R.GET_BROKER_EPOCH_CACHE,
            _R.AUTH_GET_USER, _R.AUTH_LIST_USER, _R.AUTH_GET_ACL, _R.AUTH_LIST_ACL, _R.GET_AUTH_TABLES,
            _R.GET_BROKER_CLUSTER_ACL_INFO, _R.GET_BROKER_CLUSTER_ACL_CONFIG, _R.EXPLAIN_ACCESS,
        ),
        _get_cluster,
    ),
    # What is not in the table needs the same.
    **dict.fromkeys(
        (
            _R.UPDATE_BROKER_CONFIG, _R.CLEAN_EXPIRED_CONSUMEQUEUE, _R.CLEAN_UNUSED_TOPIC, _R.RESUME_CHECK_HALF_MESSAGE,
            _R.DELETE_EXPIRED_COMMITLOG, _R.RESET_MASTER_FLUSH_OFFSET, _R.EXCHANGE_BROKER_HA_INFO, _R.POP_ROLLBACK,
            _R.NOTIFY_BROKER_ROLE_CHANGED,
            _R.AUTH_CREATE_USER, _R.AUTH_UPDATE_USER, _R.AUTH_DELETE_USER,
            _R.AUTH_CREATE_ACL, _R.AUTH_UPDATE_ACL, _R.AUTH_DELETE_ACL,
            _R.UPDATE_AND_CREATE_ACL_CONFIG, _R.DELETE_ACL_CONFIG, _R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        ),
        _update_cluster,
    ),
}  # fmt: skip
# Requests with bodies, as if they were about one topic and one group.
_BODIES: Final[Mapping[int, Needs]] = {
    **dict.fromkeys(
        (
            _R.HEART_BEAT, _R.CHECK_CLIENT_CONFIG, _R.LOCK_BATCH_MQ, _R.UNLOCK_BATCH_MQ, _R.BATCH_ACK_MESSAGE,
            _R.QUERY_ASSIGNMENT,
        ),
        _on_both(_SUB),
    ),
    _R.SET_MESSAGE_REQUEST_MODE: _on_both(_UPDATE),
    _R.UPDATE_AND_CREATE_TOPIC_LIST: _on_topic(_CREATE),
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _on_group(_CREATE),
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _on_group(_CREATE),
}  # fmt: skip
_TOPIC_FIELDS: Final = ("topic", "b")
_GROUP_FIELDS: Final = ("consumerGroup", "group", "groupName", "producerGroup", "srcGroup", "destGroup")
