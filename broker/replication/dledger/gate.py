"""Who may speak at the port of a DLedger group. A peer could read all messages, and replace uncommitted ones.

With a secret (the same options as for the HA port) each request must be signed with it as a whole; RocketMQ's signature
counts for the members and codes of ``plainSignatureCodes`` only. Without a secret, but with certificates of clients,
TLS has decided. Otherwise the peer must connect from a host of ``dLegerPeers`` or ``haPlainPeerAddresses``, unless
``haAllowPlainPeers=true``.
"""

import logging
import math
from collections.abc import Collection, Mapping
from hashlib import sha256

import trio

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.plain_codes import PlainCodes, plain_refusal
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD, Credentials, is_plain, is_signed_with

logger = logging.getLogger(__name__)

# At most one log line in this time: anybody can send requests that are refused.
LOG_S = 10.0


class GroupGate:
    """Refuses requests of the group by others than members. ``hosts``: who is let in without a secret; None: everybody.

    ``plain``: members that may get RocketMQ's signature. ``plain_codes``: who may use it, as the user ``group``.
    """

    def __init__(
        self, group: str, secret: bytes, hosts: Collection[str] | None, plain: str, plain_codes: PlainCodes
    ) -> None:
        # The secret itself is used for other proofs, too.
        key = sha256(b"DLedger group\n" + secret).hexdigest() if secret else ""
        #: With what members sign; None when they do not.
        self.credentials = Credentials(group, key, plain_signature_addresses=plain) if key else None
        self._hosts = hosts
        self._plain_codes = plain_codes
        self.refusals = 0
        self._logged_at = -math.inf

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """``handlers`` behind the gate."""
        return {code: self._guarded(handler) for code, handler in handlers.items()}

    def guarded_slow(self, handlers: Mapping[int, SlowHandler]) -> dict[int, SlowHandler]:
        """The same for slow handlers."""
        return {code: self._guarded_slow(handler) for code, handler in handlers.items()}

    def _check(self, channel: Channel, request: Command) -> None:
        own, why = self.credentials, "it is not a member of this DLedger group"
        if own is not None:
            has_name = (request.ext or {}).get(ACCESS_KEY_FIELD) == own.access_key
            if has_name and is_signed_with(request, own.secret_key, channel.signatures):
                if not is_plain(request):
                    return
                host = split_address(channel.remote)[0]
                if self._plain_codes.allow(own.access_key, host, request.code):
                    return
                why = plain_refusal(own.access_key, host, request.code)
        elif self._hosts is None or split_address(channel.remote)[0] in self._hosts:
            return
        # The reason is the same for all: a stranger does not learn whether the name of the group was right.
        self.refusals += 1
        now = trio.current_time()
        if now >= self._logged_at + LOG_S:
            self._logged_at = now
            logger.warning(
                "a request of %s to this DLedger group is refused: %s; refusals since the start: %d",
                channel.remote,
                why,
                self.refusals,
            )
        raise RequestRefused(ResponseCode.NO_PERMISSION, "only members of this DLedger group may ask that")

    def _guarded(self, handler: Handler) -> Handler:
        def checked(channel: Channel, request: Command) -> Command | None:
            self._check(channel, request)
            return handler(channel, request)

        return checked

    def _guarded_slow(self, handler: SlowHandler) -> SlowHandler:
        async def checked(channel: Channel, request: Command) -> Command | None:
            self._check(channel, request)
            return await handler(channel, request)

        return checked
