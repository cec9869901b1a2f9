"""CBOR as far as the wire needs it: no tags, bounded depth, one error class.

cbor2 would turn a peer's bytes into dates, regular expressions, shared and cyclic references and big integers.
Skylark sends none of these, so every tag is refused.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import cbor2

from mqcommon.errors import ProtocolError

#: Deeper than any of Skylark's bodies nests.
MAX_DEPTH: Final = 32


def _refuse(*_: object) -> NoReturn:
    raise ValueError("tags are not part of the protocol")


#: Every tag that cbor2 decodes by itself; tag_hook gets the others.
_KNOWN_TAGS: Final = (
    0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799,
)  # fmt: skip
_REFUSED: Final[Mapping[int, Any]] = {tag: _refuse for tag in _KNOWN_TAGS}


def loads(data: bytes, *, text_keys: bool = False, max_depth: int = MAX_DEPTH) -> Any:
    """Decode one value; with ``text_keys`` keys of maps must be text or byte strings."""
    try:
        return cbor2.loads(
            data,
            tag_hook=_refuse,
            semantic_decoders=_REFUSED,
            max_depth=max_depth,
            strict_hashable_types=text_keys,
        )
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ProtocolError(f"not valid CBOR: {error}") from None


dumps = cbor2.dumps
