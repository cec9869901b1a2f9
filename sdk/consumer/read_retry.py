"""Reads that wait for servers that are down: for endless readers, such as streams and push consumers."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import SkylarkError
from skylark.sdk.consumer.reader import PullStatus
from skylark.sdk.retry import is_transient

logger = logging.getLogger(__name__)

# The pause after an answer that came at once and did not advance the offset.
IDLE_S = 0.1
# The pause after a refusal: the topic was deleted, or reading is not permitted. An administrator may change that.
REFUSED_S = 3.0
# A reader that is refused again and again logs one of this many refusals, that is once a minute.
REFUSALS_A_LINE = 20

GivesUp = Callable[[SkylarkError], bool]
# Called with each error, and with None when the reader goes on.
Report = Callable[[Exception | None], None]
T = TypeVar("T")


class PullOutcome(Protocol):
    """The result of a pull, whatever the form of its messages."""

    @property
    def status(self) -> PullStatus: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def is_made_again(self) -> bool: ...


P = TypeVar("P", bound=PullOutcome)


class FailureLines:
    """Counts the consecutive failures of one reader, and decides which of them are logged."""

    def __init__(self) -> None:
        self.count = 0
        self._refusals = 0

    def add(self, error: SkylarkError) -> bool:
        """Count a failure. Returns whether to log it: the first one, and one of REFUSALS_A_LINE refusals."""
        self.count += 1
        is_refused = not is_transient(error)
        self._refusals += is_refused
        return self.count == 1 or (is_refused and self._refusals % REFUSALS_A_LINE == 1)


def gives_up_when_refused(error: SkylarkError) -> bool:
    """A ``gives_up`` for readers that wait for servers, but not for administrators: gives up on a refusal."""
    return not is_transient(error)


def _unreported(_: Exception | None) -> None:
    """A `Report` for readers whose errors are only logged."""


async def read_with_retry(
    ask: Callable[[], Awaitable[T]],
    backoff: Backoff,
    what: str,
    where: str,
    gives_up: GivesUp,
    report: Report = _unreported,
) -> T:
    """The result of ``ask``. Errors are retried until a server answers, unless ``gives_up``.

    ``what`` names the reader in the log, and ``where`` its position.
    """
    failures = FailureLines()
    while True:
        try:
            result = await ask()
        except SkylarkError as error:
            if gives_up(error):
                raise
            report(error)
            if failures.add(error):
                logger.warning("%s is waiting at %s: %s", what, where, error)
            await trio.sleep(backoff.pause_s(failures.count) if is_transient(error) else REFUSED_S)
        else:
            break
    if failures.count:
        report(None)
        logger.warning("%s continues at %s", what, where)
    return result


async def pull_with_retry(
    pull: Callable[[int], Awaitable[P]],
    offset: int,
    backoff: Backoff,
    what: str,
    gives_up: GivesUp,
    report: Report = _unreported,
) -> P:
    """The result of a pull at ``offset``, retried as `read_with_retry` does.

    An answer without progress takes at least IDLE_S, so that a loop of pulls never spins.
    """
    asked_at = trio.current_time()
    result = await read_with_retry(partial(pull, offset), backoff, what, f"offset {offset}", gives_up, report)
    # For a topic that was made again the log has a line already.
    if result.status is PullStatus.OFFSET_ILLEGAL and not result.is_made_again:
        logger.warning("offset %d is not in the queue, %s continues at %d", offset, what, result.next_offset)
    # Return a topic change at once: until then the reader's position belongs to the old topic.
    if not result.is_made_again and result.next_offset == offset and trio.current_time() < asked_at + IDLE_S:
        await trio.sleep(IDLE_S)
    return result
