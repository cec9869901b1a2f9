"""Foreign text that is printed: names, bodies and remarks of servers may have any character."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """``text`` with control characters escaped: a message must not control the user's terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
