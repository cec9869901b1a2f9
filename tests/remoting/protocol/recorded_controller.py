"""The session of Java brokers and Java Controllers (tests/golden/controller): requests with their answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skylark.remoting.protocol.command import Command

CONTROLLER = Path(__file__).parents[2] / "golden" / "controller"
SIGNATURE = ("AccessKey", "Signature")


class Row(NamedTuple):
    """One frame; ``request_code``: for an answer, the code of its request."""

    where: str
    at_s: float
    conn: int
    is_request: bool
    request_code: int
    command: Command


def recorded_session(name: str) -> Iterator[Row]:
    """The rows of a file, in their order."""
    asked: dict[tuple[int, int], int] = {}
    with open(CONTROLLER / f"{name}.jsonl", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            row = json.loads(line)
            head: dict[str, Any] = row["header"]
            ext = head.get("extFields")
            if ext is not None:
                ext = {key: value for key, value in ext.items() if key not in SIGNATURE}
            body = row.get("body", "").encode()
            command = Command(head["code"], ext, body, head["flag"], head["opaque"], head.get("remark"))
            key = row["conn"], head["opaque"]
            if not command.is_response:
                asked[key] = command.code
            yield Row(f"{name}:{number}", row["t"], row["conn"], not command.is_response, asked[key], command)
