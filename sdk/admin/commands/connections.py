"""Commands about connected clients."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdk.admin.command import command
from sdk.admin.params import broker_addr, option, topic_option
from sdk.admin.render import Row, Table
from sdk.admin.session import Session
from sdk.admin.versions import version_name

if TYPE_CHECKING:
    from remoting.protocol.requests.clients import Connection

FAMILY = "Connections"
_CLIENTS = Table(
    (
        ("#ClientId", "clientId"),
        ("#ClientAddr", "clientAddr"),
        ("#Language", "language"),
        ("#Version", "versionDesc"),
    ),
    "%-36s %-22s %-10s %s",
)
_SUBSCRIPTIONS = Table((("#Topic", "topic"), ("#SubExpression", "subExpression")), "%-20s %s")


def _connections(connections: "Iterable[Connection]") -> list[dict[str, Any]]:
    return [
        {
            "clientId": one.client_id,
            "clientAddr": one.client_addr,
            "language": one.language,
            "version": one.version,
            "versionDesc": version_name(one.version),
        }
        for one in sorted(connections, key=lambda one: (one.client_id, one.client_addr))
    ]


def _producer_lines(result: Mapping[str, Any]) -> Iterator[str]:
    rows: Sequence[Row] = result["connections"]
    for number, row in enumerate(rows, 1):
        client = f"{row['clientId']:<32} {row['clientAddr']:<22} {row['language']:<8}"
        yield f"{number:04d}  {client} {row['versionDesc']}"


@command(
    "producerConnection",
    option("g", "producerGroup", "producer group name", required=True),
    topic_option(),
    show=_producer_lines,
)
async def producer_connection(session: Session, producer_group: str, topic: str) -> dict[str, Any]:
    """List the connected producers of a group."""
    found = await session.admin.producer_connection(producer_group, topic)
    return {"producerGroup": producer_group, "connections": _connections(found.connection_set)}


def _consumer_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield from _CLIENTS.lines(result["connections"])
    yield ""
    yield "Below is subscription:"
    yield from _SUBSCRIPTIONS.lines(result["subscriptions"])
    yield ""
    yield f"ConsumeType: {result['consumeType']}"
    yield f"MessageModel: {result['messageModel']}"
    yield f"ConsumeFromWhere: {result['consumeFromWhere']}"


@command(
    "consumerConnection",
    option("g", "consumerGroup", "consumer group name", required=True),
    broker_addr("broker address: list only clients connected to it", default=None),
    show=_consumer_lines,
)
async def consumer_connection(session: Session, consumer_group: str, broker_addr: str | None) -> dict[str, Any]:
    """List the connected consumers of a group, and what they subscribe to."""
    found = await session.admin.consumer_connection(consumer_group, broker_addr)
    subscriptions = [
        {"topic": one.topic, "subExpression": one.sub_string, "expressionType": one.expression_type}
        for _, one in sorted(found.subscription_table.items())
    ]
    return {
        "consumerGroup": consumer_group,
        "connections": _connections(found.connection_set),
        "subscriptions": subscriptions,
        "consumeType": found.consume_type,
        "messageModel": found.message_model,
        "consumeFromWhere": found.consume_from_where,
    }


COMMANDS = (producer_connection, consumer_connection)
