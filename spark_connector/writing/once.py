"""Sends the rows of a partition so that each is stored once, whatever is run again. It decides; `Topic` does the I/O.

Spark runs a task again when it has failed, or is slow, and a whole epoch when a query is restarted before it has noted
its end. A task cannot know whether it is the first. So it asks the topic:

1. The first message of a task, its claim, has a key that is known beforehand. It is sent alone, and nothing else before
   brokers find the claim by its key, and no claim of another attempt with this key. So where no claim is found, only
   claims can have been stored; and of attempts that claim at once, at most one finds only its own claim and goes on.
2. Where there are claims, another attempt sent rows. Its requests may still be on their way, and it may even run. So
   the topic is read, from the first claim on, until nothing has come from it for `quiet_ms`. The missing rows are
   sent, the first of them as the next claim.
3. An attempt that has not sent for `lease_ms` looks for a later claim before it goes on, and ends when there is one.
4. Sends are not repeated blindly: when it is not known whether a send has stored its messages, the topic is read, too.

Neighbours: rows.py (keys), topic_io.py (the real `Topic`), writer.py (uses it).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from skylark.mqcommon.errors import SendFailed, SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.sdk.retry import Outcome, outcome_of
from skylark.spark_connector.reading.pulling import AWAY, is_final
from skylark.spark_connector.writing.rows import Place, RowKeys, name_in

logger = logging.getLogger(__name__)

T = TypeVar("T")

# After these errors it is not known which messages a send has stored.
_UNSURE = (SendFailed, *AWAY)

# Clocks of brokers, and of this machine, may differ by this much.
CLOCKS_MS = 60_000
LEASE_MS = 1_000
# How long to wait between tries, and for a broker's index.
PAUSE_MS = 20
SETTLE_MS = 500
INDEX_MS = 10_000
# The claim of the epoch before is searched among the messages of this time only.
RECENT_MS = 3_600_000


class WriteFailed(SkylarkError):
    """Rows could not be sent after all retries; ``__cause__`` is the last error."""


class Superseded(SkylarkError):
    """Another attempt of this task has taken over; this attempt must end."""


class Claim(NamedTuple):
    """A stored claim: its store time, its place among claims of the same time, its row's name, and its attempt."""

    stored_ms: int
    place: str
    name: str
    attempt: str


@dataclass
class FoundRows:
    """The rows of a partition in a topic: their names, and when the last of them was stored."""

    names: set[str] = field(default_factory=set)
    newest_ms: int = 0


class Rows(NamedTuple):
    """Messages to send, with their names and places; ``claim``: if they are a claim, its key and its attempt."""

    messages: Sequence[bytes | Message]
    names: Sequence[str]
    places: Mapping[int, Place]
    claim: tuple[str, str] | None = None

    def without(self, there: set[str]) -> "Rows":
        """The rows whose names are not in ``names``."""
        if there.isdisjoint(self.names):
            return self
        return self.part([row for row, name in enumerate(self.names) if name not in there])

    def part(self, rows: Sequence[int]) -> "Rows":
        """Some of the rows."""
        places = {number: self.places[row] for number, row in enumerate(rows) if row in self.places}
        return Rows([self.messages[row] for row in rows], [self.names[row] for row in rows], places)


class Topic(Protocol):
    """The topic that is written."""

    def send(self, rows: Rows) -> None:
        """Store ``rows`` with one try; SendFailed when it is not known which of them are stored."""

    def claims(self, key: str, since_ms: int) -> list[Claim]:
        """The messages with this unique key, stored since this time; raises when a broker of the topic cannot be asked.

        ``since_ms`` may be a time of any broker's clock, or of this machine's: clocks differ by `CLOCKS_MS` at most.
        """

    def read(self, since_ms: int) -> FoundRows:
        """The rows of this partition that came since the last call; at the first call, since ``since_ms``."""


class Time(Protocol):
    """Clocks and waiting."""

    def now_ms(self) -> float:
        """The time of the wall clock."""

    def running_ms(self) -> float:
        """The time of a monotonic clock, which goes on when the wall clock is set."""

    def sleep_ms(self, ms: float) -> None: ...


@dataclass(frozen=True)
class SendLimits:
    """How long a send may take, how many sends of unknown outcome are repeated, how long servers may be away."""

    send_timeout_ms: float
    retries: int
    wait_ms: float

    @property
    def quiet_ms(self) -> float:
        """After a silence of this length an attempt has ended, or will notice that another attempt has taken over."""
        return self.send_timeout_ms + 2 * LEASE_MS


class Once:
    """The rows of one partition for one topic.

    ``attempt`` is a text that no other attempt has. ``is_retry``: Spark says that another attempt ran just before this
    one. No attempt began before ``since_ms``. ``claim_before``: the key of the first claim for this partition in the
    epoch before, which had ended when any attempt began.
    """

    def __init__(
        self,
        topic: Topic,
        keys: RowKeys,
        attempt: str,
        limits: SendLimits,
        time: Time,
        *,
        is_retry: bool = False,
        since_ms: int = 0,
        claim_before: str | None = None,
    ) -> None:
        self._topic = topic
        self._keys = keys
        self._attempt = attempt
        self._limits = limits
        self._time = time
        self._is_retry = is_retry
        #: The number of our claim; until a claim is stored, the number of the claim to send.
        self._claim = 0
        self._is_claimed = False
        #: No claim, and no row, was stored before this time.
        self._since_ms = since_ms
        self._claim_before = claim_before
        #: Names of rows that need not be sent.
        self._there: set[str] = set()
        self._has_searched = False
        self._sent_at_ms = 0.0

    def send(self, messages: Sequence[bytes | Message], places: dict[int, Place]) -> int:
        """Send the rows that the topic lacks; returns their number."""
        if not messages:
            return 0
        if not self._has_searched:
            self._search()
            self._has_searched = True
        rows = Rows(messages, self._keys.names(messages), places).without(self._there)
        claims = 0
        while rows.messages and not self._is_claimed:
            self._send_claim(rows.part([0]))
            claims += 1
            rows = rows.without(self._there)
        self._send_rest(rows)
        return claims + len(rows.messages)

    # --- other attempts

    def _search(self) -> None:
        """Find what other attempts have stored, and wait until none of them sends any more."""
        if self._is_retry:  # the claim of the earlier attempt may be on its way, or not in the index yet
            self._time.sleep_ms(SETTLE_MS)
        # A claim must be found wherever it is, also in a bucket with years of messages. A search of a whole bucket is
        # dear, so it begins where the first attempt can have begun: of a stream, after the epoch before.
        began_ms = int(self._time.now_ms())
        if (key := self._claim_before) is not None:
            recent_ms = max(began_ms - RECENT_MS, 0)
            if before := self._patiently(lambda: self._topic.claims(key, recent_ms)):
                self._since_ms = max(min(before).stored_ms, self._since_ms)
        # Claims are numbered without gaps: the first number without a claim is free. Rows of claims are stored,
        # whatever else happened.
        while found := self._claims(self._claim):
            self._there |= {claim.name for claim in found}
            if self._claim == 0:
                self._since_ms = min(found).stored_ms
            self._claim += 1
        if self._claim:
            logger.info("rows of this partition and epoch are in the topic already: only others are sent")
            self._wait_until_quiet()
        else:
            self._since_ms = began_ms

    def _wait_until_quiet(self) -> None:
        """Read until nothing has come for `quiet_ms`, by the clock of the brokers or by ours."""
        quiet_ms = self._limits.quiet_ms
        # Silence by one of two clocks is enough: by the brokers' clock, from the newest row on, since rows may have
        # been stored long ago; and by our clock, since the brokers' clocks may be ahead of it, or lag.
        newest_ms, since = 0, self._time.running_ms()
        while True:
            count = len(self._there)
            newest_ms = max(newest_ms, self._patiently(self._read))
            if len(self._there) > count:
                since = self._time.running_ms()
            by_brokers = newest_ms + CLOCKS_MS + quiet_ms - self._time.now_ms()
            left = min(by_brokers, since + quiet_ms - self._time.running_ms())
            if left <= 0:
                return
            self._time.sleep_ms(left)

    # --- sending

    def _send_claim(self, row: Rows) -> None:
        """Send the first message, and wait until brokers find it: until then no other message may be stored.

        If another attempt has the same claim, this attempt has no claim yet: it ends, or must send the next claim.
        """
        key = self._keys.claim(self._claim)
        claim = row._replace(claim=(key, self._attempt))
        failures, is_stored = 0, False
        while True:
            try:
                # Only the first loop sends. When a send may have stored the claim, `_after_failure` reads the topic,
                # and the claim is sent again only if the topic lacks it.
                if not is_stored:
                    self._topic.send(claim)
                    is_stored = True
                found = self._indexed(key)
                break
            except _UNSURE as error:
                failures = self._counted(failures, error)
                # Not by the index: the index of a broker that has come back may lag.
                self._after_failure(error)
                is_stored = is_stored or name_in(key) in self._there
        if self._claim == 0:
            self._since_ms = min(found).stored_ms
        self._there.update(row.names, [claim.name for claim in found])
        if all(claim.attempt == self._attempt for claim in found):
            self._is_claimed = True
            self._sent_at_ms = self._time.running_ms()
            return
        # Attempts began together. Another attempt may have searched before our claim was stored, and have gone on. The
        # times of claims do not tell which attempt did: they come from brokers whose clocks differ. The times only
        # choose one attempt that stays, so that not all attempts end: the attempt with the earliest claim finds its own
        # claim and none before it.
        if min(found).attempt != self._attempt:
            raise Superseded("another attempt of this task began before this one, at the same time; this one ends")
        logger.info("another attempt of this task began at the same time: this one waits until it is silent")
        self._claim += 1
        self._wait_until_quiet()

    def _indexed(self, key: str) -> list[Claim]:
        """The claims with this key, once brokers find our claim; if they do not, the claims of other attempts."""
        deadline = self._time.running_ms() + INDEX_MS
        was_there = False
        while True:
            found = self._patiently(lambda: self._topic.claims(key, self._since_ms))
            is_there = any(claim.attempt == self._attempt for claim in found)
            # Our claim must be found before all brokers are asked for other claims. One search asks the brokers one
            # after the other: two attempts might both find only their own claim.
            if is_there and was_there:
                return found
            was_there = is_there
            if is_there:
                continue
            if self._time.running_ms() > deadline:
                if found:
                    return found
                raise WriteFailed(
                    f"a message was stored, but after {INDEX_MS // 1000} s no broker finds it by its unique key {key}:"
                    ' is its index switched off (messageIndexEnable)? Without it use .option("dedup", "false")'
                )
            self._time.sleep_ms(PAUSE_MS)

    def _send_rest(self, left: Rows) -> None:
        failures = 0
        while left.messages:
            try:
                # Before each send: an attempt that has slept may have been replaced, and its rows sent by another
                # attempt.
                self._check_lease()
                self._topic.send(left)
                self._sent_at_ms = self._time.running_ms()
                return
            except _UNSURE as error:
                failures = self._counted(failures, error)
                self._after_failure(error)
            # `_after_failure` has read which rows are stored, so a send is repeated only for the other rows.
            left = left.without(self._there)

    def _read(self) -> int:
        """Read which rows the topic has; returns when the last of them was stored."""
        found = self._topic.read(self._since_ms)
        self._there |= found.names
        return found.newest_ms

    def _claims(self, number: int) -> list[Claim]:
        """The claims with this number."""
        return self._patiently(lambda: self._topic.claims(self._keys.claim(number), self._since_ms))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """The answer to a request, which is repeated while brokers or NameServers are away."""
        deadline: float | None = None
        while True:
            try:
                return ask()
            except AWAY as error:
                if is_final(error):
                    raise
                if deadline is None:
                    logger.warning("%s; waits up to %.0f s", error, self._limits.wait_ms / 1000)
                    deadline = self._time.running_ms() + self._limits.wait_ms
                if self._time.running_ms() >= deadline:
                    raise WriteFailed(f"it cannot be seen what was stored: {error}") from error
            self._time.sleep_ms(SETTLE_MS)

    def _check_lease(self) -> None:
        if self._time.running_ms() - self._sent_at_ms <= LEASE_MS:
            return
        if self._claims(self._claim + 1):
            raise Superseded("this task was slow, and another attempt of it has taken over; this one ends")
        self._sent_at_ms = self._time.running_ms()

    def _counted(self, failures: int, error: SkylarkError) -> int:
        """Count a failure; raises the error after too many failures, or when a retry cannot help."""
        cause = error.__cause__ if isinstance(error, SendFailed) else error
        is_refused = isinstance(cause, SkylarkError) and outcome_of(cause) in (Outcome.REFUSED, Outcome.REFUSED_HERE)
        if failures == self._limits.retries or is_refused:
            raise WriteFailed(str(error)) from error
        return failures + 1

    def _after_failure(self, error: SkylarkError) -> None:
        """Read the topic twice once brokers answer again: requests on their way have then arrived, or are lost."""
        logger.warning("%s; now looking for what was stored, then going on", error)
        deadline = self._time.running_ms() + self._limits.wait_ms
        looks = 0
        while looks < 2:
            self._time.sleep_ms(SETTLE_MS)
            try:
                self._read()
                # Twice, with a pause: a request that was on its way at the first read has arrived at the second.
                looks += 1
            except AWAY as away:
                if is_final(away) or self._time.running_ms() > deadline:
                    raise WriteFailed(f"{error}; and it cannot be seen what was stored: {away}") from away
                looks = 0
