"""Whether the members of a consumer group subscribe to the same, and if not, who differs in what. Pure.

Members share the queues of their topics whatever they subscribe to. So a message reaches no member when its queue
belongs to a member that does not want its topic or tag. Brokers (broker/meta/clients.py) and `mqadmin doctor` compare
subscriptions with this module.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from skylark.mqcommon.names import retry_topic
from skylark.remoting.protocol.requests.clients import SUB_ALL, SubscriptionData

#: What one member subscribes to: topic and expression. Equal sets choose the same messages.
Wanted = frozenset[tuple[str, str]]

# Limits of a text about differences: compared sets, topics, expressions of a topic, members that have an expression.
MAX_SETS = 20
MAX_TOPICS = 3
MAX_EXPRESSIONS = 4
MAX_MEMBERS = 3
# Expressions are shown up to this length.
MAX_SHOWN = 80


def wanted_of(group: str, subscriptions: Iterable[SubscriptionData]) -> Wanted:
    """What one member of ``group`` wants. The group's retry topic is left out: members may add it or not."""
    own = retry_topic(group)
    return frozenset((one.topic, _expression(one)) for one in subscriptions if one.topic != own)


def _expression(one: SubscriptionData) -> str:
    if not one.is_tag:
        return f"{one.expression_type} {one.sub_string}"
    tags = one.tags_set or [tag.strip() for tag in one.sub_string.split("||")]
    named = sorted({tag for tag in tags if tag})
    return " || ".join(named) if named and named != [SUB_ALL] else SUB_ALL


def differences(members: Mapping[Wanted, Iterable[str]]) -> str:
    """The differences as a text: for each topic the expressions, and some members that have them. Empty without any.

    ``members``: set → the ids of the clients that have it. The text, and the work, are bounded, whatever their number.
    """
    if len(members) < 2:
        return ""
    by_topic: dict[str, dict[str, list[str]]] = {}
    clients: dict[str, None] = {}
    for wanted, having in islice(members.items(), MAX_SETS):
        some = list(islice(having, MAX_MEMBERS + 1))
        clients.update(dict.fromkeys(some))
        for topic, expression in wanted:
            by_topic.setdefault(topic, {}).setdefault(expression, []).extend(some)
    lines = []
    for topic, by_expression in sorted(by_topic.items()):
        named = {client_id for each in by_expression.values() for client_id in each}
        lacking = [client_id for client_id in clients if client_id not in named]
        if len(by_expression) == 1 and not lacking:
            continue
        ways = [f"as {_short(text)!r} by {_few(each)}" for text, each in sorted(by_expression.items())]
        ways = _cut(ways, MAX_EXPRESSIONS) + ([f"not at all by {_few(lacking)}"] if lacking else [])
        lines.append(f"topic {topic} is subscribed to {', '.join(ways)}")
    return "; ".join(_cut(lines, MAX_TOPICS))


def _few(clients: list[str]) -> str:
    return ", ".join(_cut(sorted(map(_short, clients)), MAX_MEMBERS))


def _cut(parts: list[str], most: int) -> list[str]:
    return parts if len(parts) <= most else [*parts[:most], "others"]


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
