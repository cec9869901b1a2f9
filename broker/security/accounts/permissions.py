"""What an account may do with a topic or a group, as bits. Pure.

DENY refuses everything. ANY is never owned: a request that needs ANY is allowed to owners of PUB or SUB. Requests that
only administrators may send need ADMIN; no permission contains ADMIN.
"""

from collections.abc import Mapping
from typing import Final

from skylark.remoting.protocol.rights import CLUSTER, Need

DENY: Final = 1
ANY: Final = 2
PUB: Final = 4
SUB: Final = 8
ADMIN: Final = 16

_BY_TEXT: Final[Mapping[str, int]] = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
_TEXTS: Final[Mapping[int, str]] = {DENY: "DENY", PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB|SUB"}
_NEEDED_TEXTS: Final[Mapping[int, str]] = {ANY: "PUB or SUB", PUB: "PUB", SUB: "SUB", ADMIN: "admin"}
# One of the actions of a need is enough, so the weakest of them counts.
_NEEDED: Final[Mapping[tuple[str, ...], int]] = {
    ("Pub",): PUB,
    ("Sub",): SUB,
    ("Sub", "Get"): SUB,
    ("Sub", "Update"): SUB,
    ("Get",): ANY,
}


def parse_permission(text: str) -> int:
    """The bits of a text like ``PUB|SUB``. Raises ValueError for any other text."""
    bits = _BY_TEXT.get("".join(text.split()))
    if bits is None:
        raise ValueError(f"{text!r} is no permission: give DENY, PUB, SUB or PUB|SUB")
    return bits


def permission_text(bits: int) -> str:
    """A permission as files write it."""
    return _TEXTS[bits]


def needed_bits(need: Need) -> int:
    """The bits that an account must own for ``need``: PUB, SUB, either of them (ANY), or ADMIN."""
    return ADMIN if need.kind == CLUSTER else _NEEDED.get(need.actions, ADMIN)


def needed_text(bits: int) -> str:
    """The text for ``needed`` bits in logs and refusals."""
    return _NEEDED_TEXTS[bits]


def permits(owned: int, needed: int) -> bool:
    """Whether an account with the bits ``owned`` may do something that needs ``needed``."""
    return not owned & DENY and bool(owned & (PUB | SUB if needed == ANY else needed))
