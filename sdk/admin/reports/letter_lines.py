"""Dead letters as lines of a file: the message, and the client, time and reason of the last failure. Pure."""

from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.dead_letters import DeadLetter
from skylark.sdk.admin.reports.message_report import MessageReport, message_report
from skylark.sdk.admin.reports.report import FLAT, named


@lazy_dataclass(frozen=True, slots=True)
class LetterStory:
    """Why a message is a dead letter; None for unknown values."""

    group: str
    origin_topic: str | None
    fail_reason: str | None
    fail_client: str | None
    fail_time_ms: int | None = field(metadata=named("failTime"))
    resent_times: int


@lazy_dataclass(frozen=True, slots=True)
class LetterLine:
    """A dead letter as a line of a file."""

    story: LetterStory = field(metadata=FLAT)
    message: MessageReport = field(metadata=FLAT)


def story_of(letter: DeadLetter) -> LetterStory:
    """Why ``letter`` is dead."""
    failure = letter.failure
    return LetterStory(
        letter.group,
        letter.topic or None,
        failure.reason or None,
        failure.client or None,
        failure.time_ms or None,
        letter.resent_times,
    )


def line_of(letter: DeadLetter) -> LetterLine:
    """The line of ``letter``."""
    return LetterLine(story_of(letter), message_report(letter.message))
