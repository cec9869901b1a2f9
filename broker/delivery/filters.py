"""Filters of subscriptions. The expressions come from peers, so their length and the cache are bounded."""

from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.filter import ALL, Filter
from skylark.mqcommon.bounded_cache import BoundedCache
from skylark.mqcommon.errors import InvalidSql, RequestRefused
from skylark.mqcommon.message.javahash import java_hash
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import CHECK_CLIENT_CONFIG, SQL92, TAG

# Parsing a longer expression would hold up other requests: an expression of this length takes about 15 ms.
MAX_EXPRESSION = 32_768
CACHED_BYTES = 4 * 1024 * 1024
# Memory of a filter with its set, and of an int in the set.
FILTER_BYTES = 264
CODE_BYTES = 100
# Memory of a compiled SQL expression for each of its characters, and of the shortest one (measured).
SQL_CHARACTER_BYTES = 80
SQL_BYTES = 2_048
# Messages that a filter with one comparison tests in one read: some milliseconds. With more comparisons it tests fewer.
SQL_MESSAGES = 8_000
MAX_SQL_MESSAGES = 2_000


def check_property_filter(options: BrokerOptions, expression_type: str) -> None:
    """RequestRefused, as by RocketMQ, unless the broker filters by properties."""
    if not options.enable_property_filter:
        text = f"The broker does not support consumer to filter message by {expression_type[:100]}"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{text} (set enablePropertyFilter=true)")


class Filters:
    """A cache of filters by expression: an expression is parsed once, as long as its filter stays in the cache."""

    def __init__(self, cached_bytes: int = CACHED_BYTES) -> None:
        self._cache: BoundedCache[str, Filter] = BoundedCache(cached_bytes)
        self._sql: BoundedCache[str, Filter] = BoundedCache(cached_bytes)

    def of(self, expression: str) -> Filter:
        """The filter for ``"a || b"``; "*" and "" take all. RequestRefused when it is too long."""
        if expression in ("", "*"):
            return ALL
        wanted = self._cache.get(expression)
        if wanted is None:
            if len(expression) > MAX_EXPRESSION:
                text = f"the subscription has {len(expression)} characters, at most {MAX_EXPRESSION} are allowed"
                raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
            if expression.strip() in ("", "*"):
                return ALL
            tags = dict.fromkeys(tag.strip() for tag in expression.split("||"))
            codes = frozenset(java_hash(tag) for tag in tags if tag)
            wanted = Filter(codes)
            self._cache.put(expression, wanted, 4 * len(expression) + FILTER_BYTES + CODE_BYTES * len(codes))
        return wanted

    def of_sql(self, expression: str) -> Filter:
        """The filter for an SQL92 expression. Raises InvalidSql."""
        wanted = self._sql.get(expression)
        if wanted is None:
            # Imported with the first SQL filter: most brokers have none.
            from skylark.broker.delivery.sql_code import compiled
            from skylark.mqcommon.sql.parser import parse, terms_of

            node = parse(expression)
            wanted = Filter(None, compiled(node), min(SQL_MESSAGES // (terms_of(node) + 1) + 1, MAX_SQL_MESSAGES))
            self._sql.put(expression, wanted, SQL_CHARACTER_BYTES * len(expression) + SQL_BYTES)
        return wanted

    def of_type(self, expression: str, expression_type: str | None) -> Filter:
        """The filter for an expression of this type. RequestRefused when it cannot be used."""
        if expression_type in (None, "", TAG):
            return self.of(expression)
        if expression_type != SQL92:
            text = f"the subscription has expression type {expression_type[:100]!r}; use {TAG} or {SQL92}"
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
        try:
            return self.of_sql(expression)
        except InvalidSql as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


class SubscriptionChecks(Part):
    """Checks the subscription that a client wants to use."""

    def __init__(self, filters: Filters, options: BrokerOptions) -> None:
        self._filters = filters
        self._options = options

    def handlers(self) -> dict[int, Handler]:
        return {CHECK_CLIENT_CONFIG.code: self.check}

    def check(self, channel: Channel, request: Command) -> Command:
        """46: RequestRefused for a subscription with which a pull would be refused."""
        subscription = CHECK_CLIENT_CONFIG.body(request).subscription_data
        if not subscription.is_tag:
            check_property_filter(self._options, subscription.expression_type)
            self._filters.of_type(subscription.sub_string, subscription.expression_type)
        return request.respond()
