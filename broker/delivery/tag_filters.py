"""The tag codes that a subscription wants. The texts come from peers: their length and what is kept are bounded."""

from mqcommon.bounded_cache import BoundedCache
from mqcommon.errors import RequestRefused
from mqcommon.message.javahash import java_hash
from remoting.protocol.codes import ResponseCode

# To take a longer expression apart would hold up other requests: this one takes some 15 ms.
MAX_EXPRESSION = 32_768
CACHED_BYTES = 4 * 1024 * 1024
# A set, and an int in it.
SET_BYTES = 216
CODE_BYTES = 100


class TagFilters:
    """Each expression is taken apart once, as long as there is room for what came of it."""

    def __init__(self, cached_bytes: int = CACHED_BYTES) -> None:
        self._cache: BoundedCache[str, frozenset[int]] = BoundedCache(cached_bytes)

    def codes(self, expression: str) -> frozenset[int] | None:
        """The hashes of ``"a || b"``; None for "*" and "", which take all. RequestRefused when it is too long."""
        if expression in ("", "*"):
            return None
        codes = self._cache.get(expression)
        if codes is None:
            if len(expression) > MAX_EXPRESSION:
                text = f"the subscription has {len(expression)} characters, at most {MAX_EXPRESSION} are taken"
                raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
            if expression.strip() in ("", "*"):
                return None
            tags = dict.fromkeys(tag.strip() for tag in expression.split("||"))
            codes = frozenset(java_hash(tag) for tag in tags if tag)
            self._cache.put(expression, codes, 4 * len(expression) + SET_BYTES + CODE_BYTES * len(codes))
        return codes
