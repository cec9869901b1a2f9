"""An error as the one line that mqadmin and the console show: what happened, at which address, and what to do next.

Errors that are not handled here are bugs, and are printed with their traceback.
"""

from typing import TypeVar

from skylark.mqcommon.errors import (
    TLS_GUESS,
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    NoNameServer,
    NotNameServer,
    NotRocketMQ,
    PlainSignatureOnly,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    TlsFailed,
    UserError,
)
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.visible import visible

E = TypeVar("E", bound=BaseException)

# What to do next, by RocketMQ's response code.
_REMEDIES = {
    2: "the server is busy: try again",
    3: "the server does not know this request: check that the address is the address of the server that this "
    "command asks (a broker, a NameServer or a Controller), and that the server is new enough and has the feature "
    "switched on",
    13: "check the size, the properties and the delay of the message",
    14: "the server cannot store now: look at its disk and its log",
    16: "no permission: check the permissions of the topic, the group and the broker, and who you are (--credentials)",
    17: "check the topic's name with mqadmin topicList, or create it with mqadmin updateTopic",
    22: "no message matches: check the topic, the key and the time range",
    26: "check the group's name with mqadmin consumerProgress, or create it with mqadmin updateSubGroup",
    206: "start a consumer of this group, or check its name with mqadmin consumerProgress",
}

_NO_PERMISSION = 16
# A remark that names this option already contains the remedy.
_LMQ_OPTION = "enableLmq"
_SEND_REMEDY = "look at the topic's perm with mqadmin topicRoute and at the brokers with mqadmin clusterList"


def explain(error: BaseException) -> str:
    """One line for ``error``."""
    match error:
        case NoNameServer():
            return _no_nameserver(error)
        case SendFailed(__cause__=NoNameServer() | NotRocketMQ(is_nameserver=True) as wrong_address):
            return explain(wrong_address)
        case UserError() | TlsFailed() | PlainSignatureOnly() | NotNameServer() | NotRocketMQ(is_nameserver=True):
            text = str(error)
        case NotRocketMQ():
            text = f"{error}; check that the address is right (-n, -b, NAMESRV_ADDR)"
        case ConnectFailed():
            text = f"{error}; check that a server listens there and that the address is right (-n, -b, NAMESRV_ADDR)"
        case ConnectionLost():
            may_be_tls = TLS_GUESS in str(error)
            text = f"{error} (--tls-config)" if may_be_tls else f"{error}; look at the server's log, then try again"
        case RequestTimeout():
            text = f"{error}; check that the server is alive, or wait longer with --timeout"
        case RouteNotFound(is_passing=True):
            text = f"{error}; look at the brokers with mqadmin clusterList, and try again when they are back"
        case RouteNotFound():
            text = f"no NameServer knows topic {error.topic}; {_REMEDIES[17]}"
        case SendFailed():
            text, remedy = _with_cause(error), _SEND_REMEDY
            if isinstance(cause := error.__cause__, BrokerError) and cause.remark in str(error):
                # The error's text contains the broker's answer, so the cause is not printed.
                text, remedy = _without_full_stop(str(error)), _REMEDIES.get(cause.code, _SEND_REMEDY)
            text += f"; {remedy}"
        case BrokerError():
            remark, remedy = _first_line(error.remark), _remedy(error)
            text = f"{error.addr or 'the server'} refused with code {error.code}: {remark}"
            if remedy:
                text = f"{_without_full_stop(text)}; {remedy}"
        case _:
            text = _with_cause(error)
    return ". ".join(map(_first_line, (text, *getattr(error, "__notes__", ()))))


def _no_nameserver(error: NoNameServer) -> str:
    """The error without what only a program can do: it has arguments, a command has options."""
    cause = error.__cause__
    if (
        not isinstance(cause, ConnectFailed)
        or isinstance(cause, TlsFailed)
        or error.addrs.startswith(("http://", "https://"))
    ):
        return _first_line(str(error))
    return (
        f"no NameServer answers at {error.addrs} ({_first_line(cause.reason)}): start one with skylark dev, or give "
        "its address by -n or NAMESRV_ADDR"
    )


def _remedy(error: BrokerError) -> str:
    if error.code == _NO_PERMISSION and ": " in error.remark:
        return ""  # such as mistakes about users: the text after the colon is the remedy
    if _LMQ_OPTION in error.remark:
        return ""
    # ACL 1.0 refuses with the general failure code; only the name of a Java class in the remark identifies it.
    return _REMEDIES[16] if "AclException" in error.remark else _REMEDIES.get(error.code, "")


@lazy_dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error in JSON: the line, RocketMQ's code if a server refused, and the server's address if it is known."""

    error: str
    code: int | None
    addr: str | None


@lazy_dataclass(frozen=True, slots=True)
class WarningReport:
    """A warning in JSON."""

    warning: str


def error_report(error: BaseException, doing: str = "") -> ErrorReport:
    """``error`` for JSON; ``doing`` says what failed."""
    text = explain(error)
    refusal = next((one for one in (error, error.__cause__) if isinstance(one, BrokerError)), None)
    addr = getattr(refusal or error, "addr", None)
    return ErrorReport(f"{doing}: {text}" if doing else text, refusal.code if refusal else None, addr)


def _with_cause(error: BaseException) -> str:
    """The error and its cause, unless the error's own text ends with the cause."""
    text = str(error) or type(error).__name__
    cause = error.__cause__
    if cause is None or (str(cause) and text.endswith(str(cause))):
        return text
    return f"{text} ({explain(cause)})"


def first_of(error: BaseException, kind: type[E]) -> E | None:
    """The first error of ``kind`` in ``error``, which nurseries may have wrapped in groups."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            found = first_of(part, kind)
            if found is not None:
                return found
    return None


def _without_full_stop(text: str) -> str:
    """The first line without a full stop, so that more text can follow."""
    return _first_line(text).removesuffix(".")


def _first_line(text: str) -> str:
    # RocketMQ's servers append "See https://... for further details." on lines of their own
    lines = text.strip().splitlines()
    return visible(lines[0].strip()) if lines else ""
