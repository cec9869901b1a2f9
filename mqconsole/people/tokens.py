"""Signed cookies, tokens of forms, and the limit of attempts to log in. Pure, but for the key and the ids.

A cookie has only a random id and its signature; the session is in the console's memory. A form has
another signature of the same id, which another site can neither read nor make. Both keys come from one secret that is
made at the start: a restart logs everybody out.
"""

import hashlib
import hmac
from collections import OrderedDict
from typing import Final

from itsdangerous import BadSignature, Signer

#: The failed logins of one network for one name after which it must wait, and how long a failure counts.
MOST_FAILURES: Final = 10
#: The limits of one network for all names, and of all networks for one name.
MOST_FAILURES_OF_ALL: Final = 100
FAILURES_COUNT_S: Final = 300.0
MOST_REMEMBERED: Final = 4_096
# Stands for all networks or all names: no name in an attempt is empty.
_ALL: Final = ""


class Tokens:
    """The secret of one run of the console: makes and checks both signatures."""

    def __init__(self, secret: bytes) -> None:
        self._cookies = Signer(secret, salt=b"mqconsole.cookie", digest_method=hashlib.sha256)
        self._forms = Signer(secret, salt=b"mqconsole.form", digest_method=hashlib.sha256)

    def cookie(self, session_id: str) -> str:
        """The value of the cookie."""
        return self._cookies.sign(session_id).decode()

    def session_id(self, cookie: str) -> str | None:
        """The id in a cookie that was made here; None for any other text."""
        try:
            return self._cookies.unsign(cookie).decode("ascii")
        except (BadSignature, UnicodeError):
            return None

    def form_token(self, session_id: str) -> str:
        """The token for the hidden field of a form."""
        return self._forms.get_signature(session_id).decode()

    def is_form_token(self, session_id: str, token: str) -> bool:
        """Whether ``token`` was made for this session."""
        return hmac.compare_digest(self.form_token(session_id).encode(), token.encode("utf-8", "replace"))


class Attempts:
    """Counts failed attempts to log in: passwords must not be guessed by trying, and nobody may lock others out.

    A network (an IPv4 address, the /64 of an IPv6 address) has few attempts for one name, and more for all names. For
    one name all networks together have a limit, too, except networks from which the name has logged in before.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], list[float]] = OrderedDict()
        # (network, name) of successful logins.
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def must_wait(self, network: str, name: str, now_s: float) -> bool:
        """Whether the next attempt comes too early."""
        return (
            self._count((network, name), now_s) >= MOST_FAILURES
            or self._count((network, _ALL), now_s) >= MOST_FAILURES_OF_ALL
            or (self._count((_ALL, name), now_s) >= MOST_FAILURES_OF_ALL and (network, name) not in self._known)
        )

    def failed(self, network: str, name: str, now_s: float) -> None:
        """Count a failure."""
        for key in _keys(network, name):
            self._failures[key] = [*self._recent(key, now_s), now_s][-MOST_FAILURES_OF_ALL:]
            self._failures.move_to_end(key)
        while len(self._failures) > MOST_REMEMBERED:
            self._failures.popitem(last=False)

    def uncount(self, network: str, name: str) -> None:
        """Take back the last counted failure: the secret was right, or no broker could check it."""
        for key in _keys(network, name):
            del self._failures.get(key, [])[-1:]

    def succeeded(self, network: str, name: str) -> None:
        """Take back the last counted failure after a login. The network's failures for other names still count."""
        self.uncount(network, name)
        self._failures.pop((network, name), None)
        self._known[network, name] = None
        self._known.move_to_end((network, name))
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def _count(self, key: tuple[str, str], now_s: float) -> int:
        return len(self._recent(key, now_s))

    def _recent(self, key: tuple[str, str], now_s: float) -> list[float]:
        return [at_s for at_s in self._failures.get(key, ()) if at_s > now_s - FAILURES_COUNT_S]


def _keys(network: str, name: str) -> tuple[tuple[str, str], ...]:
    return (network, name), (network, _ALL), (_ALL, name)
