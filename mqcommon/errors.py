"""All exceptions of Skylark.

SkylarkError
├── UserError                 a user's mistake: one clear line, exit code 1, no traceback
│   ├── ConfigError           a bad conf file or option: file, line, key, remedy
│   └── InvalidArgument       a value that a call cannot use; a ValueError, too
│       └── InvalidSql        an SQL92 expression that cannot be read: the place and the reason
├── ProtocolError             the peer sent bytes that are not the protocol: close the connection
├── RequestRefused            raised in a handler: becomes the error answer, the connection lives
├── RemotingError             a request got no answer
│   ├── ConnectFailed         nothing listens there, or not in time
│   │   ├── WrongBroker       another broker listens there
│   │   ├── NotRocketMQ       the server speaks another protocol
│   │   ├── PlainSignatureOnly  the server knows only RocketMQ's signature, and may not get it: nothing was signed
│   │   └── TlsFailed         both ends do not agree on TLS, or do not trust each other
│   ├── NoNameServer          none of the NameServers answers
│   ├── NoController          no Controller leads the group, or answers
│   ├── ConnectionLost        closed while the request was in flight
│   ├── RequestTimeout        no answer before the deadline
│   ├── FrameTooLarge         longer than peers accept: nothing was sent
│   └── TooManyRequests       more requests wait on one connection than the limit
├── BrokerError               a server answered with an error code
│   └── NotNameServer         another server than a NameServer listens there
├── RouteNotFound             no NameServer knows the topic
├── ReplicationRefused        a slave cannot follow its master until an administrator acts
├── SendFailed                a message could not be stored anywhere before the deadline
├── BufferFull                too many sends wait for their results already; a BufferError, too
├── ReplyTimeout              a request was sent, and no reply came in time
├── UnreadableValue           a message's body is no value of the type that its reader wants; a ValueError, too
├── RaftError                 a Raft group does not do what it was asked for; mqcommon/raft/errors.py has its kinds
└── StoreError
    ├── StoreLocked           another broker holds the directory
    ├── StoreCorrupt          damaged bytes: file, offset, reason
    │   ├── Unreadable        the disk cannot read the bytes
    │   └── NewerVersion      a file of a later version of Skylark
    ├── FileClosed            unmapped or removed before it was used
    └── DiskFull              no room for the next file
        └── OutOfDescriptors  a file could not be opened now; an OSError, too
"""


class SkylarkError(Exception):
    """Root of all errors that Skylark raises on purpose."""


class UserError(SkylarkError):
    """A user's mistake; the text is one line that says what is wrong and what to do next."""


class ConfigError(UserError):
    """A conf file or option that cannot be used."""


class InvalidArgument(UserError, ValueError):
    """An argument of the right type whose value cannot be used; the text names it and shows what it got."""


class UnreadableValue(SkylarkError, ValueError):
    """The body of a message is no value of the type that its reader wants; the text says what is wrong, and where."""


class InvalidSql(InvalidArgument):
    """An SQL92 expression that cannot be read. ``at``: the place of the mistake, counted from 0."""

    def __init__(self, sql: str, at: int, reason: str) -> None:
        super().__init__(sql, at, reason)
        self.sql = sql
        self.at = at
        self.reason = reason

    def __str__(self) -> str:
        before, after = self.sql[max(self.at - 20, 0) : self.at], self.sql[self.at : self.at + 20]
        return f"SQL92 expression, character {self.at + 1}: {self.reason}: {before!r} <here> {after!r}"


class ProtocolError(SkylarkError):
    """The peer sent bytes that violate the protocol; its connection can only be closed."""


class RequestRefused(SkylarkError):
    """A handler refuses a request; the peer gets ``code`` and ``remark``, and the connection stays open."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}"


class RemotingError(SkylarkError):
    """A request got no answer; whether the peer acted on it is not known."""


class ConnectFailed(RemotingError):
    """No connection to ``addr``: nothing was sent."""

    def __init__(self, addr: str, reason: str) -> None:
        super().__init__(addr, reason)
        self.addr = addr
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot connect to {self.addr}: {self.reason}"


class WrongBroker(ConnectFailed):
    """A broker other than ``wanted`` listens at ``addr``; it did nothing."""

    def __init__(self, addr: str, wanted: str, found: str = "") -> None:
        super().__init__(addr, f"{found or 'another broker'} listens there, not {wanted}")
        self.wanted = wanted


class NotRocketMQ(ConnectFailed):
    """The server at ``addr`` speaks another protocol, so it did nothing. ``protocol``: its name; "" if not known.

    ``is_nameserver``: whether the address was given as the address of a NameServer; the text then says what to give.
    """

    def __init__(self, addr: str, protocol: str, *, is_nameserver: bool = False) -> None:
        super().__init__(addr, f"it speaks {protocol or 'another protocol'}, not RocketMQ's")
        self.protocol = protocol
        self.is_nameserver = is_nameserver

    def __str__(self) -> str:
        text = f"{self.addr} speaks {self.protocol or 'another protocol'}, not RocketMQ's"
        if not self.is_nameserver:
            return text
        return f"{text}: give the address of a NameServer, whose port is 9876 unless its conf says otherwise"


class PlainSignatureOnly(ConnectFailed):
    """``addr`` was reached, but knows only signatures that it may not get; ``reason`` says what to do.

    ``knows``: RocketMQ's signature, or the signature of old Skylarks, which does not cover the server's address.
    """

    def __init__(self, addr: str, knows: str = "RocketMQ's signature") -> None:
        super().__init__(
            addr,
            f"it knows only {knows}, which it could use for other requests elsewhere, so nothing was signed"
            " for it; if it is a server of RocketMQ or an old Skylark that you trust, add its address to"
            f" plainSignatureAddresses (tools: --plain-signature-addresses {addr})",
        )


class TlsFailed(ConnectFailed):
    """``addr`` was reached, but no TLS connection could be made; ``reason`` also says what to do."""


class NoNameServer(RemotingError):
    """None of the NameServers answers. ``__cause__`` is the error of the last one asked; the text has its remedy."""

    def __init__(self, addrs: str, reason: str) -> None:
        super().__init__(addrs, reason)
        self.addrs = addrs
        self.reason = reason

    def __str__(self) -> str:
        text = f"no NameServer of {self.addrs} answers ({self.reason})"
        if self.addrs.startswith(("http://", "https://")):
            return f"{text}: such a URL names a server that lists NameServers; a NameServer is given as host:port"
        match self.__cause__:
            case TlsFailed():
                return text
            case ConnectionLost():
                return (
                    f"{text}: something listens there, so look at its log; a server that takes TLS only "
                    "closes connections without it (the argument tls)"
                )
            case RequestTimeout():
                return (
                    f"{text}: something listens there and says nothing; is it a NameServer, whose port is 9876 unless "
                    "its conf says otherwise, and does its process run?"
                )
        return (
            f"{text}: start one there (for development: skylark dev), or give the right addresses (the argument "
            "nameserver, or NAMESRV_ADDR)"
        )


class NoController(RemotingError):
    """None of the Controllers ``addrs`` leads their group, or answers."""

    def __init__(self, addrs: tuple[str, ...]) -> None:
        super().__init__(addrs)
        self.addrs = addrs

    def __str__(self) -> str:
        return f"no Controller of {', '.join(self.addrs)} leads: most of them must run and reach each other"


CLOSED_BY_PEER = "closed by the peer"
#: Ends the reason when the peer has said nothing before, on a connection without TLS.
TLS_GUESS = "before it answered; if that port expects TLS, turn TLS on"


class ConnectionLost(RemotingError):
    """The connection to ``addr`` closed before the answer came."""

    def __init__(self, addr: str, reason: str = CLOSED_BY_PEER) -> None:
        super().__init__(addr, reason)
        self.addr = addr
        self.reason = reason

    def __str__(self) -> str:
        return f"connection to {self.addr} lost: {self.reason}"


class RequestTimeout(RemotingError):
    """No answer from ``addr`` within ``timeout_ms``."""

    def __init__(self, addr: str, code: int, timeout_ms: float) -> None:
        super().__init__(addr, code, timeout_ms)
        self.addr = addr
        self.code = code
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return f"{self.addr} did not answer request {self.code} within {self.timeout_ms:.0f} ms"


class FrameTooLarge(RemotingError):
    """The frame has more bytes than the peer accepts; nothing of it was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"frame of {self.size} bytes is longer than {self.limit}"


class TooManyRequests(RemotingError):
    """More requests are in flight on one connection than the client allows."""

    def __init__(self, addr: str, limit: int) -> None:
        super().__init__(addr, limit)
        self.addr = addr
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.limit} requests to {self.addr} already wait for an answer"


_REQUEST_CODE_NOT_SUPPORTED = 3


class BrokerError(SkylarkError):
    """A broker or NameServer at ``addr`` answered with an error ``code``."""

    def __init__(self, code: int, remark: str | None, addr: str = "") -> None:
        super().__init__(code, remark, addr)
        self.code = code
        self.remark = remark or ""
        self.addr = addr

    def __str__(self) -> str:
        return f"{self.addr or 'server'} answered code {self.code}: {self.remark}"

    @property
    def is_unknown_request(self) -> bool:
        """Whether the server does not know requests of this kind: a server of RocketMQ, or of an older Skylark."""
        return self.code == _REQUEST_CODE_NOT_SUPPORTED


class NotNameServer(BrokerError):
    """The server is not a NameServer. ``broker_name``: the broker that listens there, if it is known."""

    def __init__(self, error: BrokerError, broker_name: str) -> None:
        super().__init__(error.code, error.remark, error.addr)
        self.broker_name = broker_name

    def __str__(self) -> str:
        found = f"the broker {self.broker_name} listens there" if self.broker_name else "is it a broker's address?"
        return (
            f"{self.addr} is no NameServer ({found}): give the address of a NameServer, "
            "whose port is 9876 unless its conf says otherwise"
        )


class RouteNotFound(SkylarkError):
    """No NameServer has a route for ``topic``, or none to the wanted broker.

    ``is_passing``: servers are starting or cannot be reached, so a later request may succeed.
    """

    def __init__(self, topic: str, reason: str = "", *, is_passing: bool = False) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.reason = reason
        self.is_passing = is_passing

    def __str__(self) -> str:
        tail = f": {self.reason}" if self.reason else ""
        return f"no route for topic {self.topic}{tail}"


class ReplicationRefused(SkylarkError):
    """A slave cannot follow this master: the text says why, and what an administrator can do."""


class SendFailed(SkylarkError):
    """A message could not be stored; ``__cause__`` is the last error."""


class BufferFull(SkylarkError, BufferError):
    """`Producer.send_nowait` has no room for the message and did nothing with it; `Producer.room` waits for room."""


class ReplyTimeout(SkylarkError):
    """No reply to a request came in time. ``msg_id`` is its message's id; empty when it was not sent in time either."""

    def __init__(self, topic: str, timeout_ms: float, msg_id: str) -> None:
        super().__init__(topic, timeout_ms, msg_id)
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.msg_id = msg_id

    def __str__(self) -> str:
        sent = f"message {self.msg_id} is stored" if self.msg_id else "the message may not be stored"
        return (
            f"no reply to a request in topic {self.topic} within {self.timeout_ms:.0f} ms; {sent}: "
            "does a consumer of the topic run, and does its handler call reply_to?"
        )


class RaftError(SkylarkError):
    """A Raft group does not do what it was asked for, or cannot go on."""


class StoreError(SkylarkError):
    """The store cannot do what was asked."""


class StoreLocked(StoreError):
    """Another broker has the store directory open."""


class StoreCorrupt(StoreError):
    """Bytes on disk differ from the bytes that were written; the text says where."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file = file
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file} is damaged at offset {self.offset}: {self.reason}"


class Unreadable(StoreCorrupt):
    """The disk cannot read bytes that were written."""

    def __str__(self) -> str:
        return (
            f"the disk cannot read {self.file} at offset {self.offset} ({self.reason}): it is failing. If another"
            " broker has the messages, let this one copy them again to a sound disk (broker resyncSlave; a member of a"
            " DLedger group: docs/operate/dledger.md). Otherwise do without the messages there: broker verifyStore"
            " --repair names all such places, and makes them readable"
        )


class NewerVersion(StoreCorrupt):
    """A later version of Skylark wrote the file, and this version cannot read it; the text says what is new in it."""

    def __str__(self) -> str:
        return f"{self.file} was written by a newer Skylark ({self.reason}): run that version or a later one"


class FileClosed(StoreError):
    """The file was unmapped or removed before it could be used."""


class DiskFull(StoreError):
    """No room to allocate a file; reads go on, writes are refused until there is room."""


class OutOfDescriptors(DiskFull, OSError):
    """No file descriptor was left to open a file. As with a full disk, writes are refused until one is free.

    Nothing was written or synced, so nothing is lost: the caller may try again. (A failed fsync is an OSError.)
    """


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group of errors, at any depth; an error that is no group is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
