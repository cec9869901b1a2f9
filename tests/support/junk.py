"""Junk in every field of a header and every member of a body, one at a time, over one connection.

`Junk` sends a good request of a code with one value replaced by another of every type, and checks that each is
answered, that the connection serves on, and that nothing of it is logged with a traceback.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest
import trio

from skylark.mqcommon.logs.formats import LineFormatter
from skylark.remoting.protocol import strict_cbor
from skylark.remoting.protocol.command import CBOR, JSON, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import PREFIX, encode
from skylark.remoting.protocol.header import Header, header_fields
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE, SendMessageRequestHeader

# As a header's field or a body's member may come in JSON; CBOR brings what JSON has no form for.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, 1e308, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**64 - 1,
    "", " ", "x", "-1", "0", "1.5", "NaN", "Infinity", "9" * 30, "1_0", "\u0663", "a\nb", "a\0b", "%s%n{}", "true",
    "x" * 5_000, [], ["a"], [[1]], {}, {"a": 1}, {"topic": []},
)  # fmt: skip
CBOR_VALUES: tuple[Any, ...] = (float("nan"), float("inf"), b"\xff\xfe", [float("nan")], {1: 2}, {b"\xff": None})
# A field that says how long a request may be held: junk in it is no reason to answer at once.
HOLDS = ("holdMillis",)
TIMEOUT_S = 60
BURST = 200
UNKNOWN_CODE = 30_000
# Most fields stand in many requests: each gets every n-th value, and its next request or codec the values beside these.
EVERY = 3
V5_3_3 = 479
MAX_LINE = 2_500
_FORMATTER = LineFormatter("%(message)s")
_REFUSED = "RemotingCommandException"

Request = tuple[str, Mapping[str, Any] | None, bytes]


class Junk:
    """``good``: fields that make any request of the daemon sound; ``bodies``: by code, those that have one."""

    def __init__(
        self,
        stream: trio.SocketStream,
        good: Mapping[str, Any],
        bodies: Mapping[int, Any],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self._stream = stream
        self._connection = Connection()
        self._good = dict(good)
        self._bodies = bodies
        self._caplog = caplog
        self._read: dict[str, None] = {}
        read = Header._read.__func__  # type: ignore[attr-defined]

        def noting(cls: type[Header], ext: Any, short: bool) -> Any:
            self._read.update(dict.fromkeys(field.wire for field in header_fields(cls, short) if field.wire))
            return read(cls, ext, short)

        monkeypatch.setattr(Header, "_read", classmethod(noting))
        caplog.set_level(logging.WARNING)
        caplog.clear()  # of what the server logged as it started

    async def throw(self, code: int, codec: int) -> int:
        """All junk for requests of ``code``; how many there were."""
        body = self._bodies.get(code)
        self._read.clear()
        await self._ask_all(code, codec, [("good", self._good, _encoded(body, codec))])
        # Sends read their fields themselves.
        sends = [each.wire for each in header_fields(SendMessageRequestHeader, code != SEND_MESSAGE.code)]
        fields = list(self._read) or [name for name in sends if name in self._good]
        values = VALUES + CBOR_VALUES if codec == CBOR else VALUES
        requests: list[Request] = []
        # Headers in CBOR hold plain values only, or the connection is closed.
        plain = [value for value in values if codec != CBOR or not isinstance(value, list | dict)]
        for at, name in enumerate(fields, code + codec):
            some = plain[at % EVERY :: EVERY]
            requests += [(name, {**self._good, name: value}, _encoded(body, codec)) for value in some]
        for at, path in enumerate(_paths(body), code + codec):
            some = values[at % EVERY :: EVERY]
            requests += [(str(path), self._good, _encoded(_replaced(body, path, value), codec)) for value in some]
        requests += [("no header", None, _encoded(body, codec)), ("no body", self._good, b"")]
        requests += [("body", self._good, junk) for junk in (b"\xff", b"{", b"null", b"[]", b"0", b"\x9f" * 40)]
        for number in range(0, len(requests), BURST):
            await self._ask_all(code, codec, requests[number : number + BURST])
        return len(requests)

    async def _ask_all(self, code: int, codec: int, requests: list[Request]) -> None:
        frames = [_frame(code, at, codec, ext, body) for at, (_, ext, body) in enumerate(requests)]
        # The last one is answered at once: what is missing then waits for something.
        frames.append(_frame(UNKNOWN_CODE, len(requests), codec, None, b""))
        answers: dict[int, Command] = {}
        waited = {at for at, (name, _, _) in enumerate(requests) if name in HOLDS}
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stream.send_all, b"".join(frames))
                while not answers.keys() | waited >= set(range(len(frames))):
                    data = await self._stream.receive_some()
                    assert data, f"{code}: the connection was closed"
                    answers |= {answer.opaque: answer for answer in self._connection.receive_data(data)}
        del answers[len(requests)]
        self._check(code, requests, answers)

    def _check(self, code: int, requests: list[Request], answers: Mapping[int, Command]) -> None:
        for at, answer in answers.items():
            if at >= len(requests):
                continue  # what was held back of the burst before
            name, ext, body = requests[at]
            remark = answer.remark or ""
            # What nobody expected is answered with the name of its exception.
            unexpected = remark.partition(":")[0].endswith(("Error", "Exception")) and _REFUSED not in remark
            assert not unexpected, f"{code} {name}={str((ext or {}).get(name, body))[:100]!r}: {remark[:500]}"
        traces = [record for record in self._caplog.records if record.exc_info]
        assert not traces, f"{code}: {traces[0].getMessage()}: {traces[0].exc_info}"
        assert len(self._caplog.records) <= len(requests), "a line a request at most"
        lines = [_FORMATTER.format(record) for record in self._caplog.records]
        assert not [line for line in lines if len(line) > MAX_LINE or "\n" in line]
        self._caplog.clear()


def _frame(code: int, opaque: int, codec: int, ext: Mapping[str, Any] | None, body: bytes) -> bytes:
    if codec == CBOR:
        return encode(Command(code, None if ext is None else dict(ext), body, opaque=opaque, codec=CBOR))
    # As it is: a Command would turn the fields into text, which not every client does.
    header = orjson.dumps({"code": code, "opaque": opaque, "version": V5_3_3, "language": "JAVA", "extFields": ext})
    return PREFIX.pack(4 + len(header) + len(body), JSON << 24 | len(header)) + header + body


def _encoded(body: Any, codec: int) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    return strict_cbor.dumps(body) if codec == CBOR else orjson.dumps(body)


def _paths(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every member of a body."""
    if path:
        yield path
    if isinstance(body, dict):
        for name, value in body.items():
            yield from _paths(value, (*path, name))
    elif isinstance(body, list):
        for at, value in enumerate(body):
            yield from _paths(value, (*path, at))


def _replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[path[0]] = _replaced(body[path[0]], path[1:], value)
    return copy
