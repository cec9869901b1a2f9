"""Frames recorded from Apache RocketMQ and its clients (tests/golden/wire), by file and row."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skylark.remoting.protocol.command import JSON, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import PREFIX

WIRE = Path(__file__).parents[2] / "golden" / "wire"

#: Request names in the files that have names instead of codes.
NAMED = {
    "CONSUMER_SEND_MSG_BACK": 36, "END_TRANSACTION": 37, "GET_CONSUMER_LIST_BY_GROUP": 38, "GET_MAX_OFFSET": 30,
    "GET_MIN_OFFSET": 31, "GET_ROUTEINFO_BY_TOPIC": 105, "HEART_BEAT": 34, "LOCK_BATCH_MQ": 41,
    "NOTIFY_CONSUMER_IDS_CHANGED": 40, "PULL_MESSAGE": 11, "QUERY_CONSUMER_OFFSET": 14, "REGISTER_BROKER": 103,
    "SEARCH_OFFSET_BY_TIMESTAMP": 29, "SEND_BATCH_MESSAGE": 320, "SEND_MESSAGE": 10, "SEND_MESSAGE_V2": 310,
    "UNLOCK_BATCH_MQ": 42, "UNREGISTER_BROKER": 104, "UNREGISTER_CLIENT": 35, "UPDATE_CONSUMER_OFFSET": 15,
}  # fmt: skip


class Recorded(NamedTuple):
    """One frame: where it stands, the request code it belongs to, and its bytes."""

    where: str
    request_code: int
    is_request: bool
    frame: bytes

    @property
    def command(self) -> Command:
        (command,) = Connection().receive_data(self.frame)
        return command


def rows(name: str) -> list[dict[str, Any]]:
    with open(WIRE / f"{name}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def recorded(*names: str) -> Iterator[Recorded]:
    for name in names:
        for number, row in enumerate(rows(name), 1):
            request, kind = row["name"].split(".")[:2]
            code = NAMED[request] if request in NAMED else int(request)
            yield Recorded(f"{name}:{number}:{row['name']}", code, kind == "REQ", bytes.fromhex(row["hex"]))


def recorded_by_fake_server() -> Iterator[bytes]:
    """Frames of the C++ client, put together again from header and body."""
    for row in rows("cpp_fake"):
        header, body = row["raw_header"].encode(), row["body"].encode()
        yield PREFIX.pack(4 + len(header) + len(body), JSON << 24 | len(header)) + header + body
