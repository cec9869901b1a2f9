"""The intruder's side of the wire, byte by byte; nothing of Skylark is imported. A frame:

4 bytes   1 byte      3 bytes         H bytes        N-4-H bytes
length N  0 for JSON  header length H JSON header    body
"""

import hashlib
import hmac
import json
import struct
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import trio

TIMEOUT_S = 60
_VERSION = 479


class Signer(NamedTuple):
    """A name and a secret, which need not be true."""

    name: str
    secret: str


class Answer(NamedTuple):
    """One answer to a request."""

    code: int
    remark: str
    body: bytes


def request(code: int, number: int, fields: Mapping[str, str], body: bytes = b"", who: Signer | None = None) -> bytes:
    """A frame; signed as RocketMQ's clients do if ``who`` is given."""
    ext = dict(fields)
    if who is not None:
        ext["AccessKey"] = who.name
        content = "".join(ext[name] for name in sorted(ext)).encode() + body
        ext["Signature"] = b64encode(hmac.digest(who.secret.encode(), content, "sha1")).decode()
    header = json.dumps(
        {
            "code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": number,
            "serializeTypeCurrentRPC": "JSON", "version": _VERSION,
        }
    ).encode()  # fmt: skip
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def answers_in(data: bytearray) -> Iterable[tuple[int, Answer]]:
    """The whole frames at the beginning of ``data``, which are removed from it, with the numbers of their requests."""
    while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "big")):
        head_size = int.from_bytes(data[5:8], "big")
        head = json.loads(data[8 : 8 + head_size])
        yield head["opaque"], Answer(head["code"], head.get("remark") or "", bytes(data[8 + head_size : 4 + size]))
        del data[: 4 + size]


async def ask(addr: str, frames: Sequence[bytes]) -> list[Answer]:
    """The answers to ``frames``, whose numbers are their places; all are sent before the first answer is read."""
    host, port = addr.rsplit(":", 1)
    found: dict[int, Answer] = {}
    data = bytearray()
    with trio.fail_after(TIMEOUT_S):
        async with await trio.open_tcp_stream(host, int(port)) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"".join(frames))
            while len(found) < len(frames):
                some = await stream.receive_some(1 << 16)
                assert some, f"{addr} closed the connection after {len(found)} answers"
                data += some
                found.update(answers_in(data))
    return [found[number] for number in range(len(frames))]


async def told(stream: trio.abc.Stream, *pieces: bytes) -> bytes:
    """All that the peer says until it closes the connection; each of ``pieces`` is sent after something came."""
    found = b""
    try:
        for piece in pieces:
            await stream.send_all(piece)
            data = await stream.receive_some(1 << 16)
            found += data
        while data:
            data = await stream.receive_some(1 << 16)
            found += data
    except trio.BrokenResourceError:
        pass
    return found


async def told_at(addr: str, *pieces: bytes) -> bytes:
    """As `told`, on a new connection."""
    host, port = addr.rsplit(":", 1)
    with trio.fail_after(TIMEOUT_S):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            return await told(stream, *pieces)


async def first_told_at(addr: str, data: bytes) -> bytes:
    """The first bytes of the answer to ``data``, on a new connection."""
    host, port = addr.rsplit(":", 1)
    with trio.fail_after(TIMEOUT_S):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(data)
            return bytes(await stream.receive_some(1 << 16))


# --- the port for slaves


def slave_hellos(cluster: str, name: str) -> list[list[bytes]]:
    """What slaves of each kind begin with: each a list of pieces, which are sent one after another."""
    hello = {
        "version": 1, "cluster": cluster, "broker": name, "broker_id": 1, "addr": "127.0.0.1:1", "nonce": bytes(16)
    }  # fmt: skip
    claim = {"start": 0, "end": 0, "file_bytes": 1 << 14, "last_file": False, "tails": []}
    found = [[offset.to_bytes(8, "big")] for offset in (0, 1 << 10, (1 << 63) - 1)]
    found += [[_hello(hello), _hello({**claim, "proof": proof})] for proof in (b"", bytes(32), b"x" * 32)]
    # With Controllers: state 1 with the broker's id, then state 2 with offsets.
    reports = b"".join(struct.pack(">iq", 2, offset) for offset in (0, 1 << 10, 1 << 20, (1 << 63) - 1))
    found += [[struct.pack(">ihhq", 1, 0, learner, who) + reports] for who in (0, 1, 2, 99) for learner in (0, 1)]
    return found


def _hello(fields: Mapping[str, Any]) -> bytes:
    body = cbor(fields)
    return b"\xffSKYLARK" + struct.pack(">I", len(body)) + body


def cbor(value: Any) -> bytes:
    """The CBOR of maps, lists, texts, bytes, booleans and integers that are not negative."""
    match value:
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return _head(0, value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            return _head(3, len(value.encode())) + value.encode()
        case list():
            return _head(4, len(value)) + b"".join(map(cbor, value))
        case dict():
            return _head(5, len(value)) + b"".join(cbor(each) for pair in value.items() for each in pair)
    raise TypeError(type(value))


def _head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([kind << 5 | code]) + number.to_bytes(size, "big")
    raise ValueError(number)


# --- HTTP


class Page(NamedTuple):
    """An answer by HTTP; names of ``headers`` are in small letters, one value each."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def http(
    addr: str,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    *,
    is_stream: bool = False,
) -> Page:
    """The answer to one request on a connection of its own; of a stream its beginning. ``form``: letters and digits."""
    body = "&".join(f"{name}={value}" for name, value in (form or {}).items()).encode()
    lines = {"Host": addr, "Connection": "close", **(headers or {})}
    if form is not None:
        lines |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    asked = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
    data = await (first_told_at if is_stream else told_at)(addr, asked)
    top, _, rest = data.partition(b"\r\n\r\n")
    status, *fields = top.decode("latin-1").split("\r\n")
    pairs = (each.partition(":") for each in fields)
    found = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Page(int(status.split()[1]), found, rest)


# --- gRPC's messages and signature


def proto(*fields: tuple[int, bytes | int]) -> bytes:
    """A message of protocol buffers: numbers of fields with bytes, or with integers."""
    found = b""
    for number, value in fields:
        if isinstance(value, bytes):
            found += _varint(number << 3 | 2) + _varint(len(value)) + value
        else:
            found += _varint(number << 3) + _varint(value)
    return found


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def fields_in(data: bytes) -> list[tuple[int, bytes | int]]:
    """The fields of a message of protocol buffers, as `proto` takes them; fields of fixed size are left out."""
    found: list[tuple[int, bytes | int]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        key = varint()
        match key & 7:
            case 0:
                found.append((key >> 3, varint()))
            case 2:
                size = varint()
                found.append((key >> 3, data[at : at + size]))
                at += size
            case 1:
                at += 8
            case _:
                at += 4
    return found


def call_metadata(client_id: str, who: Signer | None) -> list[tuple[str, str]]:
    """The metadata of a gRPC call, signed if ``who`` is given."""
    time = "20261127T080000Z"
    found = [("x-mq-client-id", client_id), ("x-mq-date-time", time)]
    if who is not None:
        signature = hmac.new(who.secret.encode(), time.encode(), hashlib.sha1).hexdigest().upper()
        value = f"MQv2-HMAC-SHA1 Credential={who.name}/r/s, SignedHeaders=x-mq-date-time, Signature={signature}"
        found.append(("authorization", value))
    return found
