"""How a scenario and the test that started it talk: JSON on standard input, a line of JSON for each thing to tell."""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rocketmq.client import Message, RecvMessage

DEADLINE_S = 60


def asked() -> dict[str, Any]:
    """The first line of standard input."""
    return json.loads(sys.stdin.readline())


def tell(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def sign(client: Any, task: dict[str, Any]) -> None:
    """Give a producer or consumer the session credentials of its task: access key, secret key, channel."""
    if "credentials" in task:
        client.set_session_credentials(*task["credentials"])


def made(wanted: dict[str, Any]) -> Message:
    """The message that the test describes."""
    message = Message(wanted["topic"])
    message.set_body(wanted["body"])
    if "tags" in wanted:
        message.set_tags(wanted["tags"])
    if "keys" in wanted:
        message.set_keys(wanted["keys"])
    for name, value in wanted.get("properties", {}).items():
        message.set_property(name, value)
    return message


def described(message: RecvMessage, property_names: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of a C++ client's message; the client only lends its memory, so all fields are copied."""

    def text(value: bytes | None) -> str:
        return (value or b"").decode()

    return {
        "topic": message.topic,
        "id": message.id,
        "body": text(message.body),
        "tags": text(message.tags),
        "keys": text(message.keys),
        "properties": {name: text(message.get_property(name)) for name in property_names},
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.commit_log_offset,
        "store_size": message.store_size,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
    }
