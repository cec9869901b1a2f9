"""Foreign text that is printed: names, bodies and remarks of servers may have any character."""

import re

#: The characters that make a terminal do more than show a letter, but for line feed and tab: control characters, line
#: separators, and the marks that turn the direction of the text after them, which would show its letters in an order
#: that is not theirs.
UNSAFE = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{UNSAFE}]")


def visible(text: str) -> str:
    r"""``text`` with `UNSAFE` characters escaped as ``\x1b`` or ``\u202e``: a message must not control the terminal."""
    return _UNSAFE.sub(lambda match: escape(match[0]), text)


def visible_json(document: str) -> str:
    r"""As `visible` for a JSON document: its strings get escapes of JSON, such as ``\u001b``, so they mean the same."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def escape(char: str) -> str:
    r"""The character as ``\x1b`` or ``\u202e``."""
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
