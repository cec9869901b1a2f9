"""The errors for messages that are refused, with RocketMQ's codes and texts."""

from skylark.mqcommon.errors import DiskFull, OutOfDescriptors, RequestRefused
from skylark.remoting.protocol.codes import ResponseCode


def illegal(reason: str) -> RequestRefused:
    """The refusal of a message that no broker would store."""
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. {reason}",
    )


def no_space(error: DiskFull) -> RequestRefused:
    """The refusal when the disk is full or file descriptors are used up."""
    if isinstance(error, OutOfDescriptors):
        return _not_available(f"the broker is out of file descriptors: {error}")
    return no_room_refusal(str(error))


def no_room_refusal(why: str) -> RequestRefused:
    """The refusal while messages cannot be kept on the disk: "disk full", the only such reason that producers know."""
    return _not_available(f"the broker's disk is full: {why}")


def _not_available(reason: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"service not available now. It may be caused by one of the following reasons: {reason}",
    )


def bad_fields(error: Exception) -> RequestRefused:
    """The refusal of a request with bad fields; a KeyError names a missing one."""
    what = f"the custom field <{error.args[0]}> is null" if isinstance(error, KeyError) else str(error)
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR, f"org.apache.rocketmq.remoting.exception.RemotingCommandException: {what}"
    )
