"""Filters of subscriptions. Their texts come from peers, so their length and the cache are bounded."""

from broker.store.filter import ALL, Filter
from mqcommon.bounded_cache import BoundedCache
from mqcommon.errors import RequestRefused
from mqcommon.message.javahash import java_hash
from remoting.protocol.codes import ResponseCode

# Parsing a longer expression would hold up other requests: one of this length takes about 15 ms.
MAX_EXPRESSION = 32_768
CACHED_BYTES = 4 * 1024 * 1024
# Memory of a filter with its set, and of an int in the set.
FILTER_BYTES = 264
CODE_BYTES = 100


class TagFilters:
    """Parses each expression once, as long as its filter stays in the cache."""

    def __init__(self, cached_bytes: int = CACHED_BYTES) -> None:
        self._cache: BoundedCache[str, Filter] = BoundedCache(cached_bytes)

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
