"""Signed cookies, tokens of forms, and the limit of attempts to log in. Pure, but for the key and the ids.

A cookie has a random id and its signature, nothing else; what belongs to it is in the console's memory. A form has
another signature of the same id, which another site can neither read nor make. Both keys come from one secret that is
made at the start: a restart logs everybody out.
"""

import hashlib
import hmac
from collections import OrderedDict
from typing import Final

from itsdangerous import BadSignature, Signer

#: Failed attempts to log in, of one address or for one name, before it has to wait, and for how long they count.
MOST_FAILURES: Final = 10
FAILURES_COUNT_S: Final = 300.0
MOST_REMEMBERED: Final = 4_096


class Tokens:
    """Makes and checks both signatures."""

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
        """For the hidden field of a form."""
        return self._forms.get_signature(session_id).decode()

    def is_form_token(self, session_id: str, token: str) -> bool:
        """Whether ``token`` was made for this session."""
        return hmac.compare_digest(self.form_token(session_id).encode(), token.encode("utf-8", "replace"))


class Attempts:
    """Counts failed attempts to log in, by address and by name: passwords must not be guessed by trying."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def must_wait(self, keys: tuple[str, ...], now_s: float) -> bool:
        """Whether one of the keys has failed too often."""
        return any(len(self._recent(key, now_s)) >= MOST_FAILURES for key in keys)

    def failed(self, keys: tuple[str, ...], now_s: float) -> None:
        """Count a failure for each key."""
        for key in keys:
            self._failures[key] = [*self._recent(key, now_s), now_s][-MOST_FAILURES:]
            self._failures.move_to_end(key)
        while len(self._failures) > MOST_REMEMBERED:
            self._failures.popitem(last=False)

    def take_back(self, keys: tuple[str, ...]) -> None:
        """The last failure of each key was none: nobody could check the secret."""
        for key in keys:
            del self._failures.get(key, [])[-1:]

    def succeeded(self, keys: tuple[str, ...]) -> None:
        """Forget the failures: it was the owner who mistyped."""
        for key in keys:
            self._failures.pop(key, None)

    def _recent(self, key: str, now_s: float) -> list[float]:
        return [at_s for at_s in self._failures.get(key, ()) if at_s > now_s - FAILURES_COUNT_S]
