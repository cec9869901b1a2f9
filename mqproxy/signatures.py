"""The signature of a call, ``MQv2-HMAC-SHA1``, in its metadata. Pure.

The secret signs only the time at which the client made the call, and no server compares that time with its clock. So a
signature that was seen once is valid for any call until the secret changes: only TLS hides signatures from others.
"""

import hmac
from collections.abc import Mapping

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire

AUTHORIZATION, DATE_TIME = "authorization", "x-mq-date-time"
ALGORITHM = "MQv2-HMAC-SHA1"

_HEX_DIGITS = 40


@lazy_dataclass(frozen=True, slots=True)
class CallSignature:
    """The claimed user of a call, and the signature that proves the claim."""

    username: str
    signed: bytes
    digest: bytes

    def is_made_with(self, secret: str) -> bool:
        """Whether this secret made the signature. Takes the same time however much of the signature fits."""
        return hmac.compare_digest(hmac.digest(secret.encode(), self.signed, "sha1"), self.digest)


def signature_of(headers: Mapping[str, str]) -> CallSignature:
    """The signature in the headers of a call. Refused, with RocketMQ's texts, when there is none."""
    authorization = headers.get(AUTHORIZATION, "")
    if not authorization:
        raise unauthorized("authentication header is null")
    date_time = headers.get(DATE_TIME, "")
    if not date_time:
        raise unauthorized("datetime is null")
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM or not rest:
        raise unauthorized("authentication header is incorrect")
    # Credential=..., SignedHeaders=x-mq-date-time, Signature=...: in any order; only Credential and Signature count.
    items: dict[str, str] = {}
    for item in rest.split(","):
        name, separator, value = item.strip().partition("=")
        if not separator:
            raise unauthorized("authentication keyValues length is incorrect, actual length=1")
        items[name] = value
    # Clients of clouds write Credential=NAME/REGION/SERVICE.
    username = items.get("Credential", "").partition("/")[0]
    if not username:
        raise unauthorized("username cannot be null.")
    return CallSignature(username, date_time.encode(), _digest(items.get("Signature", "")))


def unauthorized(text: str) -> Refused:
    """The refusal for a caller who does not prove to be a user."""
    return Refused(wire.UNAUTHORIZED, text)


def _digest(text: str) -> bytes:
    try:
        if len(text) == _HEX_DIGITS:
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise unauthorized("check signature failed.")
