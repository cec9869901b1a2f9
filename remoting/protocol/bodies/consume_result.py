"""How a consumer handled one message that was sent to it directly (309)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import FLAG, LONG, TEXT, choice

CONSUME_RESULT = choice("CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL")


@dataclass(slots=True)
class ConsumeMessageDirectlyResult(Body):
    """The result of the consumer's listener."""

    order: bool = member(FLAG, False)
    auto_commit: bool = member(FLAG, True)
    consume_result: str = member(CONSUME_RESULT, "CR_SUCCESS")
    remark: str | None = member(TEXT, None)
    spent_time_mills: int = member(LONG, 0)
