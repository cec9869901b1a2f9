"""The library h2 as the client of a `ServerConnection`, with no network between them."""

from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event as ClientEvent

from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.events import Event
from skylark.remoting.http2.header_blocks import block
from skylark.remoting.http2.limits import Http2Limits

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
    (":authority", "127.0.0.1:8081"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
#: The bytes of `REQUEST`, as HTTP/2 counts them.
REQUEST_BYTES = sum(len(name) + len(value) + 32 for name, value in REQUEST)
HEAD = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0")]
HEAD_BLOCK, TRAILERS_BLOCK = block(HEAD), block(TRAILERS)


class Pair:
    """Both sides of one connection; bytes travel in ``exchange``."""

    def __init__(self, limits: Http2Limits | None = None, now_s: float = 0.0) -> None:
        self.server = ServerConnection(limits or Http2Limits())
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.now_s = now_s

    def exchange(self) -> tuple[list[Event], list[ClientEvent]]:
        """Carry bytes until both sides have nothing to say; what each side saw."""
        seen: list[Event] = []
        answers: list[ClientEvent] = []
        while True:
            sent = self.client.data_to_send()
            if sent:
                seen += self.server.receive(sent, self.now_s)
            got = b"".join(self.server.take())
            if got:
                answers += self.client.receive_data(got)
            if not sent and not got:
                return seen, answers

    def request(self, headers: Iterable[tuple[str, str]] = REQUEST, body: bytes | None = b"body") -> int:
        """Open a stream, with its whole body; None: its body comes later."""
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, list(headers), end_stream=False)
        if body is not None:
            self.client.send_data(stream_id, body, end_stream=True)
        return stream_id
