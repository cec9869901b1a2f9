"""Handlers of `PushConsumer` that take a record batch: they are batch handlers, whose messages are decoded together."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from mqcommon.errors import InvalidArgument
from mqcommon.message.message import MessageExt
from sdk.arrow import RecordBatch, check_arrow
from sdk.consumer.elsewhere import HandlersElsewhere
from sdk.consumer.outcome import BatchHandler, Result

if TYPE_CHECKING:
    from pyarrow import Schema

ArrowHandler = Callable[[RecordBatch], Result | Awaitable[Result]]


def batch_handler_of(
    batch_handler: BatchHandler | None, arrow_handler: ArrowHandler | None, columns: Sequence[str] | None
) -> BatchHandler | None:
    """The one that is given, as a batch handler. Raises InvalidArgument when both are."""
    if arrow_handler is None:
        if columns is not None:
            raise InvalidArgument("arrow_columns are for an arrow_handler, which is not given")
        return batch_handler
    if batch_handler is not None:
        raise InvalidArgument("give a batch_handler or an arrow_handler, not both")
    check_arrow("arrow_handler")
    from sdk.arrow.schema import schema_of

    schema = schema_of(columns)
    if not isinstance(arrow_handler, HandlersElsewhere):
        return _ForMessages(arrow_handler, schema)
    # The same one is given again when a client is made again, as in the child of a fork.
    if not isinstance(arrow_handler.handler, _ForMessages):
        arrow_handler.handler = _ForMessages(arrow_handler.handler, schema)
    return arrow_handler


class _ForMessages:
    """A handler of record batches as one of lists of messages."""

    def __init__(self, handler: Callable[[Any], Any], schema: "Schema") -> None:
        self._handler = handler
        self._schema = schema

    def __call__(self, messages: list[MessageExt]) -> Any:
        from sdk.arrow.decode import TooMuchContent
        from sdk.arrow.messages import record_batch

        try:
            batch = record_batch(messages, self._schema)
        except TooMuchContent:
            raise InvalidArgument(
                f"the bodies of {len(messages)} messages are too large for one record batch: use a smaller batch_size"
            ) from None
        return self._handler(batch)
