"""`RetryPolicy`: how often a consumer tries a message, after which pauses, and which exceptions end the tries (pure).

`Failure` says why a call of the handler did not consume its messages. `RetryPolicy.fate` decides what happens to the
messages; failures.py and orderly.py carry it out.
"""

from collections.abc import Sequence
from enum import Enum
from traceback import format_exception_only, walk_tb
from typing import NamedTuple

from skylark.mqcommon.arguments import INT_MAX, check_int, wrong_type
from skylark.mqcommon.errors import InvalidArgument, UnreadableValue
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: RocketMQ's messageDelayLevel, the pauses that brokers have unless their conf says otherwise (s).
LEVEL_DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
_S = 1_000


class Fate(Enum):
    """What happens to a message that a handler did not consume; the values are texts for logs."""

    value: str

    RETRY = "the message is delivered again later"
    DEAD_LETTER = "the message becomes a dead letter at once"
    DROP = "the message is dropped"


@lazy_dataclass(frozen=True, slots=True)
class Failure:
    """Why a handler did not consume its messages: the ``error`` that it raised, or another ``reason``.

    ``delay_level`` is the level that the handler asks for: 0 leaves the pause to the policy.
    """

    reason: str
    delay_level: int = 0
    error: BaseException | None = None

    @classmethod
    def raised(cls, error: BaseException) -> "Failure":
        """The handler has raised ``error``."""
        return cls(reason_of(error), 0, error)


def reason_of(error: BaseException) -> str:
    """An error as one line: its class, its text, and where it was raised."""
    # If there are several lines, as of a SyntaxError, the last line has class and text. `str` of a user's error may
    # raise.
    text = format_exception_only(error)[-1].strip()
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        place = f" ({frame.f_code.co_filename.rpartition('/')[2]}:{line})"
    return f"{text}{place}"


class Pause(NamedTuple):
    """The pause before a message comes again: a level of the broker (0: the broker chooses), and a time if known."""

    level: int
    ms: float | None


Errors = type[BaseException] | tuple[type[BaseException], ...]


@lazy_dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """For ``PushConsumer(..., retry=RetryPolicy(...))``.

    A message is tried ``attempts`` times, the first try included, then it is a dead letter. ``delays_ms`` are the
    pauses after the first failure, the second and so on; the last pause is used for all later failures. By default the
    pauses are RocketMQ's. Where a broker waits, it uses its shortest delay level (1 s, 5 s, 10 s, 30 s, 1 min ... 2 h)
    that is not shorter than the pause.

    Exceptions of the classes ``dead_letter_on`` make a message a dead letter at once. Exceptions of the classes
    ``drop_on`` drop the message: the drop is logged, and counted in ``consumer.dropped``. After all other exceptions,
    and exceptions of the classes ``retry_on``, the message is tried again. Of several classes that fit an exception the
    most derived class decides. A message whose body cannot be read as the handler's annotated type (UnreadableValue) is
    a dead letter at once, unless UnreadableValue is in one of the three.
    """

    attempts: int = 17
    delays_ms: Sequence[float] = ()
    retry_on: Errors = ()
    dead_letter_on: Errors = ()
    drop_on: Errors = ()

    def __post_init__(self) -> None:
        check_int("attempts", self.attempts, 1, INT_MAX)
        if isinstance(self.delays_ms, str | bytes) or not isinstance(self.delays_ms, Sequence):
            raise wrong_type("delays_ms", "a sequence of numbers", self.delays_ms)
        for number, delay_ms in enumerate(self.delays_ms):
            if isinstance(delay_ms, bool) or not isinstance(delay_ms, int | float):
                raise wrong_type(f"delays_ms[{number}]", "a number", delay_ms)
            if not 1 <= delay_ms <= LEVEL_DELAYS_S[-1] * _S:
                raise InvalidArgument(f"delays_ms[{number}] must be at least 1 and at most 2 hours, not {delay_ms}")
        listed: dict[type[BaseException], str] = {}
        for name in ("retry_on", "dead_letter_on", "drop_on"):
            for cls in _classes(name, getattr(self, name)):
                if cls in listed:
                    raise InvalidArgument(f"{cls.__name__} is in {listed[cls]} and in {name}: one of them decides")
                listed[cls] = name

    def fate(self, error: BaseException | None) -> Fate:
        """What happens to a message on which the handler has raised ``error``; None: the handler has not raised."""
        if error is not None:
            for cls in type(error).__mro__:
                for fate, classes in (
                    (Fate.RETRY, self.retry_on),
                    (Fate.DEAD_LETTER, self.dead_letter_on),
                    (Fate.DROP, self.drop_on),
                ):
                    if cls is classes or (isinstance(classes, tuple) and cls in classes):
                        return fate
                # No further try can read the body. The base classes of UnreadableValue, as ValueError, do not decide.
                if cls is UnreadableValue:
                    return Fate.DEAD_LETTER
        return Fate.RETRY

    def pause(self, reconsume_times: int, delay_level: int = 0) -> Pause:
        """The pause before the next delivery, after ``reconsume_times`` retries; a handler's ``delay_level`` wins."""
        if delay_level or not self.delays_ms:
            return Pause(delay_level, None)
        delay_ms = self.delays_ms[min(reconsume_times, len(self.delays_ms) - 1)]
        level = next(number for number, delay_s in enumerate(LEVEL_DELAYS_S, 1) if delay_s * _S >= delay_ms)
        return Pause(level, delay_ms)


def _classes(name: str, given: object) -> tuple[type[BaseException], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    for cls in classes:
        if not isinstance(cls, type) or not issubclass(cls, BaseException):
            raise wrong_type(name, "an exception class, or a tuple of them", given)
    return classes
