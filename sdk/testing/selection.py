"""Which messages an expression of a subscription chooses, without a broker: tests in memory choose as brokers do."""

from skylark.broker.delivery.sql_code import compiled
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import PAIR_END, encode_properties
from skylark.mqcommon.sql.parser import parse
from skylark.remoting.protocol.requests.clients import parse_subscription
from skylark.sdk.consumer.expression import Sql


def is_chosen(message: MessageExt, expression: str | Sql) -> bool:
    """Whether a consumer with this expression gets the message."""
    if isinstance(expression, Sql):
        return compiled(parse(expression.text))(f"{PAIR_END}{encode_properties(message.properties)}".encode())
    tags = parse_subscription("", expression).tags_set
    return not tags or message.tags in tags
