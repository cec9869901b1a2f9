"""Calls of the user's handler, whatever kind of function it is."""

from collections.abc import Sequence
from typing import Any

from mqcommon.message.message import MessageExt
from remoting.protocol.requests.clients import ConsumeMessageDirectlyResult
from sdk.consumer.contents import keep_contents
from sdk.consumer.outcome import ConsumeResult, Result, check_result
from sdk.consumer.settings import Settings


async def call_handler(settings: Settings, messages: Sequence[MessageExt]) -> Result:
    """What the handler returns for ``messages``: one, unless it takes several. Raises what it raises."""
    result: Any
    await keep_contents(messages)
    if settings.handler is not None:
        result = settings.handler(messages[0])
    else:
        assert settings.batch_handler is not None
        result = settings.batch_handler(list(messages))
    if hasattr(result, "__await__"):
        result = await result
    return check_result(result)


async def consumed_directly(settings: Settings, message: MessageExt) -> ConsumeMessageDirectlyResult:
    """How the handler takes ``message``, in RocketMQ's words; failures have no other effect."""
    answer = ConsumeMessageDirectlyResult(order=settings.orderly)
    try:
        result = await call_handler(settings, [message])
    except Exception as error:
        answer.consume_result = "CR_THROW_EXCEPTION"
        answer.remark = f"{type(error).__name__}: {error}"
    else:
        is_consumed = result is None or result is ConsumeResult.SUCCESS
        answer.consume_result = "CR_SUCCESS" if is_consumed else "CR_LATER"
    return answer
