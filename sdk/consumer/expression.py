"""What a consumer reads of a topic: tags as text, or `Sql`."""

from collections.abc import Mapping
from typing import Annotated

from skylark.mqcommon.arguments import check_text, wrong_type
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.sql.parser import parse
from skylark.remoting.protocol.requests.clients import SQL92, TAG, SubscriptionData, parse_subscription


@lazy_dataclass(frozen=True, slots=True)
class Sql:
    """Messages whose properties fulfil an SQL92 condition: ``Sql("amount > 5 AND shop = 'north'")``.

    The broker checks the messages; it needs ``enablePropertyFilter=true``. Raises InvalidArgument, which names the
    place of the mistake, when the condition has a syntax error. See docs/guides/consumers.md for the language.
    """

    text: str

    def __post_init__(self) -> None:
        check_text("text", self.text)
        parse(self.text)

    def __str__(self) -> str:
        return self.text


def check_expression(name: str, value: object) -> None:
    """TypeError unless ``value`` is a text or an `Sql`; the tags in a text are checked where the text is used."""
    if isinstance(value, Sql):
        return
    if not isinstance(value, str):
        raise wrong_type(name, "a str with tags, or an Sql", value)
    check_text(name, value)


def check_subscriptions(name: str, value: object) -> None:
    """TypeError unless ``value`` maps texts to expressions."""
    if not isinstance(value, Mapping):
        topic = value if isinstance(value, str) else "orders"
        hint = f': for all messages of a topic: {{{topic!r}: "*"}}'
        raise wrong_type(name, "a mapping of topics to expressions", value, hint)
    for key, each in value.items():
        check_text(f"a key of {name}", key)
        check_expression(f"{name}[{key!r}]", each)


Expression = Annotated[str | Sql, check_expression]
Subscriptions = Annotated[Mapping[str, str | Sql], check_subscriptions]


def text_and_type(expression: str | Sql) -> tuple[str, str]:
    """The expression's text and type, as requests carry them."""
    return (expression.text, SQL92) if isinstance(expression, Sql) else (expression, TAG)


def subscription_to(topic: str, expression: str | Sql, sub_version: int = 0) -> SubscriptionData:
    """The subscription as heartbeats carry it. ValueError when a text names no tag."""
    return parse_subscription(topic, *text_and_type(expression), sub_version)
