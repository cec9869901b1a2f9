"""What a consume queue holds of a message's tag."""

from common.message.javahash import java_hash
from common.message.properties import find_property

TAGS = b"TAGS"
_MAX_MEMO = 10_000


class TagCodes:
    """Java's hashes of tags; each is computed once."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}

    def of(self, properties: bytes) -> int:
        """The code for a message with these properties; 0 without a tag."""
        # find, not "in": that first tries to make a number of its operand, and an exception of that.
        if properties.find(TAGS) < 0:
            return 0
        tag = find_property(properties, TAGS)
        if not tag:
            return 0
        code = self._codes.get(tag)
        if code is None:
            if len(self._codes) >= _MAX_MEMO:
                self._codes.clear()
            code = self._codes[tag] = java_hash(tag.decode("utf-8", "replace"))
        return code
