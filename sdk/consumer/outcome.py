"""What a handler says about its messages, and where a new group begins."""

from collections.abc import Awaitable, Callable
from enum import Enum
from inspect import isasyncgen, iscoroutine, isgenerator, signature

from skylark.mqcommon.arguments import check_int, check_text, shown, wrong_type
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.names import DELAY_LEVELS
from skylark.sdk.consumer.retry_policy import Failure


class ConsumeResult(Enum):
    """The result of a handler; None counts as SUCCESS."""

    #: The messages are consumed.
    SUCCESS = "SUCCESS"
    #: Deliver the messages again later, and count a failure: by the retry levels, or with ``orderly`` after
    #: ``suspend_ms``.
    LATER = "LATER"
    #: Only with ``orderly``: wait for ``suspend_ms`` and try the same messages again. This does not count as a failure.
    SUSPEND = "SUSPEND"


@lazy_dataclass(frozen=True, slots=True)
class Later:
    """Deliver again after the delay of this level (1: 1 s ... 18: 2 h); 0: by the message's number of failures so far.

    ``reason`` is kept with the message, in case that it becomes a dead letter.
    """

    delay_level: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        check_int("delay_level", self.delay_level, 0, DELAY_LEVELS)
        check_text("reason", self.reason)


def check_handler(name: str, handler: object) -> None:
    """TypeError unless ``handler`` can be called with one argument, as far as Python can tell."""
    if not callable(handler):
        hint = ""
        if iscoroutine(handler):
            # Closed, as otherwise Python warns that it was never awaited: this error says more.
            handler.close()
            hint = f": it is called already, give {handler.__name__} without parentheses"
        raise wrong_type(name, "a function", handler, hint)
    try:
        signature(handler).bind(None)
    except TypeError as error:
        raise TypeError(f"{name} is called with one argument, which {shown(handler)} does not take: {error}") from None
    except ValueError:
        pass  # a function of C that does not tell


class ConsumeFrom(Enum):
    """Where a group begins in a queue for which it has committed no offset. Retry topics are read from the first."""

    #: At the end; but a queue that still has its first message in memory is read from its first message, as RocketMQ
    #: does, so that a new group misses nothing of a new topic.
    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    #: At the first message stored at or after ``consume_timestamp_ms``.
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


Result = ConsumeResult | Later | None
Handler = Callable[[MessageExt], Result | Awaitable[Result]]
#: A handler as the program passes it: of a message, of a value of its argument's type, or of a value and its message.
GivenHandler = Callable[..., Result | Awaitable[Result]]
BatchHandler = Callable[[list[MessageExt]], Result | Awaitable[Result]]


def check_result(result: object) -> Result:
    """``result`` if it is what a handler may return, else TypeError."""
    if result is None or isinstance(result, ConsumeResult | Later):
        return result
    raise TypeError(f"a handler returns None, a ConsumeResult or Later(...), not {result!r}{_hint_about(result)}")


def _hint_about(result: object) -> str:
    if isinstance(result, bool):
        return ": return None when the message is consumed, and ConsumeResult.LATER to get it again"
    if isgenerator(result) or isasyncgen(result):
        return ": it has a yield, so nothing of it has run"
    if callable(result):
        return ": a function was returned and not called"
    return ""


def failure_of(result: Result) -> Failure:
    """Why a handler that has returned LATER or `Later` did not consume its messages."""
    if isinstance(result, Later):
        return Failure(result.reason or "the handler returned Later", result.delay_level)
    return Failure("the handler returned LATER")


def check_timestamp(consume_from: ConsumeFrom, timestamp_ms: int | None) -> None:
    """InvalidArgument unless there is a timestamp exactly when it is needed."""
    if (timestamp_ms is not None) != (consume_from is ConsumeFrom.TIMESTAMP):
        raise InvalidArgument("consume_timestamp_ms goes with consume_from=ConsumeFrom.TIMESTAMP, and only with it")
