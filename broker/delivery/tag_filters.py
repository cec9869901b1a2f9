"""Filters of subscriptions. The texts come from peers: their length and what is kept are bounded."""

from broker.store.filter import ALL, Filter
from mqcommon.bounded_cache import BoundedCache
from mqcommon.errors import RequestRefused
from mqcommon.message.javahash import java_hash
from remoting.protocol.codes import ResponseCode

# To take a longer expression apart would hold up other requests: this one takes some 15 ms.
MAX_EXPRESSION = 32_768
CACHED_BYTES = 4 * 1024 * 1024
# A filter with its set, and an int in that.
FILTER_BYTES = 264
CODE_BYTES = 100


class TagFilters:
    """Each expression is taken apart once, as long as there is room for what came of it."""

    def __init__(self, cached_bytes: int = CACHED_BYTES) -> None:
        self._cache: BoundedCache[str, Filter] = BoundedCache(cached_bytes)

    def of(self, expression: str) -> Filter:
        """The filter for ``"a || b"``; "*" and "" take all. RequestRefused when it is too long."""
        if expression in ("", "*"):
            return ALL
        wanted = self._cache.get(expression)
        if wanted is None:
            if len(expression) > MAX_EXPRESSION:
                text = f"the subscription has {len(expression)} characters, at most {MAX_EXPRESSION} are taken"
                raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
            if expression.strip() in ("", "*"):
                return ALL
            tags = dict.fromkeys(tag.strip() for tag in expression.split("||"))
            codes = frozenset(java_hash(tag) for tag in tags if tag)
            wanted = Filter(codes)
            self._cache.put(expression, wanted, 4 * len(expression) + FILTER_BYTES + CODE_BYTES * len(codes))
        return wanted
