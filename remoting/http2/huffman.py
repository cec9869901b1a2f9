"""The compression of texts in header blocks (RFC 7541, 5.2 and appendix B), decoded a byte at a time.

The code is canonical: codes of one length count up in the order of their characters, and shorter codes come first. So
the lengths describe it. Neighbour: header_blocks.py.
"""

from typing import Final

# Length of a code in bits → the characters that have codes of this length.
_CHARACTERS: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\0$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: (
        b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf"
        b"\xc5\xe7\xef"
    ),
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: (
        b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
        b"\x7f\xdc\xf9"
    ),
    # The last code of this length ends a text; it is all ones, and may not occur.
    30: b"\n\r\x16",
}
# A text ends within a byte, which is filled with up to seven ones.
_MAX_PADDING_BITS: Final = 7


class _Place(dict[int, tuple[str, "_Place"]]):
    """A place between two bytes, within a code or after one: next byte → the characters that it ends, and its place.

    Entries are made when they are first needed; there are 65,536 at most, in all places.
    """

    def __init__(self) -> None:
        self.next: list[_Place | str] = []  # after a bit 0 and after a bit 1: a place within a code, or a character
        self.may_end = False  # whether the bits since the last character may be padding

    def __missing__(self, byte: int) -> tuple[str, "_Place"]:
        text, place = "", self
        for shift in range(7, -1, -1):
            if not place.next:
                raise ValueError("a compressed text holds the code for the end of a text")
            after = place.next[byte >> shift & 1]
            if isinstance(after, str):
                text += after
                place = _START
            else:
                place = after
        self[byte] = text, place
        return text, place


def _tree() -> _Place:
    """The place before a text, with all that follow it."""
    start = _Place()
    unused = [start]  # places whose codes have one length and are not given away, in the order of their codes
    length = 0
    for bits, characters in _CHARACTERS.items():
        for _ in range(bits - length - 1):
            unused = _split(unused)
        ends: list[_Place | str] = [chr(character) for character in characters]
        length = bits
        inner = [_Place() for _ in range(2 * len(unused) - len(ends))]
        ends += inner
        for at, place in enumerate(unused):
            place.next = ends[2 * at : 2 * at + 2]
        unused = inner
    padding: _Place | str = start
    for _ in range(_MAX_PADDING_BITS + 1):
        assert isinstance(padding, _Place)
        padding.may_end = True
        padding = padding.next[1]
    return start


def _split(places: list[_Place]) -> list[_Place]:
    """The places one bit later, where no code ends."""
    for place in places:
        place.next = [_Place(), _Place()]
    return [after for place in places for after in place.next if isinstance(after, _Place)]


_START: Final = _tree()


def decode(data: bytes) -> str:
    """The text, in latin-1. ValueError when ``data`` is not one."""
    found = []
    place = _START
    for byte in data:
        text, place = place[byte]
        found.append(text)
    if not place.may_end:
        raise ValueError("a compressed text ends within a character")
    return "".join(found)
