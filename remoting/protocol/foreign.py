"""Names the protocol of a peer that does not speak RocketMQ's, by the first bytes that it sent. Pure.

People give a client the port of another server, or open a server's port in a browser. The name is a guess for the texts
of errors and logs, and for `ANSWER_TO_HTTP`: nothing else depends on it.
"""

from typing import Final

HTTP: Final = "HTTP"
GRPC: Final = "gRPC"
TLS: Final = "TLS"
REMOTING: Final = "RocketMQ's remoting protocol"
_REDIS: Final = "Redis's protocol"

_TEXT: Final = (
    b"This port speaks RocketMQ's protocol, not HTTP.\n"
    b"The console's port is 8088 and the port for gRPC clients is 8081, unless they were told others.\n"
)
#: Sent to a browser or a gRPC client before its connection is closed: they show it, or its status, to their users.
ANSWER_TO_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TEXT), _TEXT)
)

_STARTS: Final = (
    (b"PRI * HTTP/2", GRPC),
    (b"HTTP/", HTTP),
    *((method, HTTP) for method in (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"DELETE ", b"CONNECT ")),
    (b"\x16\x03", TLS),
    (b"\x15\x03", TLS),
    (b"-ERR", _REDIS),
    (b"*1\r\n", _REDIS),
    (b"*2\r\n", _REDIS),
    (b"SSH-", "SSH"),
)


def foreign_protocol(data: bytes) -> str:
    """The protocol of a connection whose peer sent ``data`` first; "" when it is not recognized."""
    for start, name in _STARTS:
        if data.startswith(start):
            return name
    # A server of HTTP/2 begins with a SETTINGS frame: its length, type 4, flags, stream 0.
    if data[:1] == b"\0" and data[3:4] == b"\x04" and data[5:9] == bytes(4):
        return GRPC
    # A frame of RocketMQ: its length, which may be over the limit, header type 0 (JSON) with the header's length, the
    # header.
    if data[4:6] == b"\0\0" and data[8:10] == b'{"':
        return REMOTING
    return ""
