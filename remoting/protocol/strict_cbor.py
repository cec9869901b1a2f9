"""CBOR of peers and of users: bounded depth, and only the tags that are needed.

cbor2 would turn a peer's bytes into regular expressions, and into shared and cyclic references: 20 levels of references
make gigabytes of 160 bytes when somebody walks over them. `loads` is for the wire, where Skylark sends no tag at all.
`loads_values` is for bodies of messages, whose authors may send dates, numbers, UUIDs and sets.
"""

from collections.abc import Mapping
from typing import IO, Any, Final, NoReturn

import cbor2

from skylark.mqcommon.errors import ProtocolError

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


#: Tags that stand for one value each: dates and times, integers, decimals and fractions, UUIDs, IP addresses, complex
#: numbers, sets; 55799 says that this is CBOR.
_VALUES: Final = (0, 1, 2, 3, 4, 30, 37, 52, 54, 100, 258, 260, 261, 1004, 43000, 55799)
#: Deeper than anybody writes by hand, and far from Python's limit of recursion.
MAX_VALUE_DEPTH: Final = 100


def _no_value(*_: object) -> NoReturn:
    raise ValueError("references, regular expressions and MIME messages are not read from CBOR")


_NO_VALUES: Final[Mapping[int, Any]] = {tag: _no_value for tag in _KNOWN_TAGS if tag not in _VALUES}


def loads_values(data: bytes, *, max_depth: int = MAX_VALUE_DEPTH) -> Any:
    """Decode the body of a message. Tags that cbor2 does not know are `cbor2.CBORTag`.

    Raises what cbor2 raises: cbor2.CBORDecodeError for bytes that are no CBOR, or have tags that are not read. Bytes
    after the value are ignored; see `load_value`.
    """
    return cbor2.loads(data, semantic_decoders=_NO_VALUES, max_depth=max_depth)


def load_value(stream: IO[bytes], *, max_depth: int = MAX_VALUE_DEPTH) -> Any:
    """As `loads_values`, from a seekable stream; the stream is then positioned after the value."""
    return cbor2.CBORDecoder(stream, semantic_decoders=_NO_VALUES, max_depth=max_depth).decode()


dumps = cbor2.dumps
