"""The rights that a request needs: its resources, and for each the actions of which the sender needs one. Pure.

Each description of a request (remoting/protocol/requests) names its right beside its code and fields. The rights are
RocketMQ's (its annotations of headers), with these differences. A request that RocketMQ does not list needs Update or
Get of the cluster; RocketMQ asks for a signature only. Offsets of queues need Sub or Get, as consumers ask for them,
too. A retry topic stands for its group, also when it is pulled. A message by its id needs Get of the cluster, as its
topic is not known before the message is read. Sends to the timer's topic and to the revive log need
Update of the cluster, as brokers obey what is in them.
Fields are taken as the handlers take them: 310 and 320 have short names, 10 long ones.
Neighbours: broker/security asks for the needs of each request, and decides by users (ACL 2.0) or accounts (ACL 1.0).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import RETRY_PREFIX, is_obeyed_by_brokers, is_retry_topic
from skylark.remoting.protocol.bounded_body import SMALL, BodyLimits
from skylark.remoting.protocol.command import ext_text

#: The kinds of resources.
CLUSTER: Final = "Cluster"
TOPIC: Final = "Topic"
GROUP: Final = "Group"

Actions = tuple[str, ...]
PUB: Final[Actions] = ("Pub",)
SUB: Final[Actions] = ("Sub",)
GET: Final[Actions] = ("Get",)
CREATE: Final[Actions] = ("Create",)
UPDATE: Final[Actions] = ("Update",)
DELETE: Final[Actions] = ("Delete",)
SUB_GET: Final[Actions] = ("Sub", "Get")
SUB_UPDATE: Final[Actions] = ("Sub", "Update")
#: Limits for bodies that list many queues or subscriptions. The handlers' own limits are as large, or smaller.
LARGE: Final = BodyLimits(max_bytes=1 << 20, max_entries=40_000)
# Separates a group from the topic in the names of retry topics of pops, by their version.
_SEPARATORS: Final = ("+", "_")
_TOPIC_FIELDS: Final = ("topic", "b")
_GROUP_FIELDS: Final = ("consumerGroup", "group", "groupName", "producerGroup", "srcGroup", "destGroup")


class Need(NamedTuple):
    """One of ``actions`` on a resource. The name of a cluster is left empty: the broker's cluster is meant."""

    kind: str
    name: str
    actions: Actions


NeedsOfFields = Callable[[Mapping[str, Any] | None], list[Need]]
NeedsOfBody = Callable[[Any], list[Need]]


@lazy_dataclass(frozen=True, slots=True)
class Right:
    """How the needs of a request follow from its ``ext``, or from its body where ``of_body`` is given."""

    #: With ``of_body``: the needs of such a request about one topic and one group, for an explanation.
    of_ext: NeedsOfFields
    of_body: NeedsOfBody | None = None
    #: Limits of the body that ``of_body`` takes.
    limits: BodyLimits = SMALL

    def about(self, topic: str, group: str) -> list[Need]:
        """The needs of a request about the topic and the group; an empty topic or group is left out."""
        ext = {**dict.fromkeys(_TOPIC_FIELDS, topic), **dict.fromkeys(_GROUP_FIELDS, group)}
        return [need for need in self.of_ext(ext) if need.name or need.kind == CLUSTER]


GET_CLUSTER: Final = Right(lambda ext: [Need(CLUSTER, "", GET)])
UPDATE_CLUSTER: Final = Right(lambda ext: [Need(CLUSTER, "", UPDATE)])


def on_topic(actions: Actions, field: str = "topic") -> Right:
    """One of ``actions`` on the topic that ``field`` names."""
    return Right(lambda ext: [need_topic(text_of(ext, field), actions)])


def on_group(actions: Actions, field: str = "consumerGroup") -> Right:
    """One of ``actions`` on the group that ``field`` names."""
    return Right(lambda ext: [need_group(text_of(ext, field), actions)])


def on_both(actions: Actions, group_field: str = "consumerGroup") -> Right:
    """One of ``actions`` on the group in the field ``group_field``, and on the topic if there is one."""

    def needs(ext: Mapping[str, Any] | None) -> list[Need]:
        group, topic = text_of(ext, group_field), text_of(ext, "topic")
        found = [need_group(group, actions)]
        return [*found, need_topic(topic, actions, group)] if topic else found

    return Right(needs)


def of_body(needs: NeedsOfBody, *, like: Right, limits: BodyLimits = SMALL) -> Right:
    """The needs that ``needs`` finds in the body.

    For an explanation the request counts as a request with the right ``like``.
    """
    return Right(like.of_ext, needs, limits)


def need_topic(name: str, actions: Actions, group: str = "") -> Need:
    """A topic. A retry topic stands for its group; a retry topic of ``group`` may end with the name of a topic.

    ``%RETRY%a_b`` may belong to group a_b, or to group a for pops of topic b. Give ``group`` only where no message is
    read: otherwise members of a could read the messages of a_b.
    """
    if not is_retry_topic(name):
        return Need(TOPIC, name, actions)
    of = name.removeprefix(RETRY_PREFIX)
    if group and of.startswith(tuple(group + separator for separator in _SEPARATORS)):
        of = group
    return Need(GROUP, of.partition(_SEPARATORS[0])[0], actions)


def need_to_send(topic: str) -> Need:
    """The right to send to a topic that is not a retry topic.

    A message for the timer or for the revive log names other topics, and the broker takes or delivers messages of these
    without another check. Therefore only who may change the cluster may send there, such as another broker.
    """
    return Need(CLUSTER, "", UPDATE) if is_obeyed_by_brokers(topic) else Need(TOPIC, topic, PUB)


def need_group(name: str, actions: Actions) -> Need:
    """A group, which may be given as its retry topic."""
    return Need(GROUP, name.removeprefix(RETRY_PREFIX), actions)


def text_of(ext: Mapping[str, Any] | None, name: str) -> str:
    """The field ``name`` as text, as the handlers read it; "" when it is absent."""
    value = ext.get(name) if ext else None
    return value if type(value) is str else "" if value is None else ext_text(value)
