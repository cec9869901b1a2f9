"""`FailureNote`: why a consumer failed with a message last, as three of the message's properties.

The consumer makes the note, the broker that takes the message back stores it, and readers of dead letters read it. Each
further failure replaces the note. The texts are cut, so that they fit beside the properties of the user.
"""

import re
from collections.abc import Mapping

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.properties import FAIL_CLIENT, FAIL_REASON, FAIL_TIME

#: A longer reason is cut.
MAX_REASON_CHARS = 1_000
# A client id has a host, a process and a time; RocketMQ's may have an instance's name, too.
_MAX_CLIENT_CHARS = 255
# \x01 and \x02 end names and values of properties; other control characters would break lines of tools.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_TIME = re.compile(r"[0-9]{1,18}")


@lazy_dataclass(frozen=True, slots=True)
class FailureNote:
    """Why a message failed.

    ``client``: the id of the member whose handler failed; ``time_ms``: when, by the client's clock.
    """

    reason: str
    client: str
    time_ms: int

    @property
    def line(self) -> str:
        """The reason as one line, for logs."""
        return _clean(self.reason, MAX_REASON_CHARS)

    def properties(self) -> dict[str, str]:
        """The properties that keep this note. An empty text is left out: brokers skip empty properties."""
        texts = {
            FAIL_REASON: self.line,
            FAIL_CLIENT: _clean(self.client, _MAX_CLIENT_CHARS),
            FAIL_TIME: str(self.time_ms),
        }
        return {name: text for name, text in texts.items() if text}

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "FailureNote | None":
        """The note in a message's properties; None when there is none."""
        if FAIL_REASON not in properties:
            return None
        time_ms = properties.get(FAIL_TIME, "")
        at = int(time_ms) if _TIME.fullmatch(time_ms) else 0
        return cls(properties[FAIL_REASON], properties.get(FAIL_CLIENT, ""), at)


def _clean(text: str, most: int) -> str:
    # A surrogate that stands alone cannot be encoded, and has no place in a message.
    whole = _CONTROL.sub(" ", text).strip().encode("utf-8", "replace").decode()
    return whole if len(whole) <= most else f"{whole[: most - 3]}..."
