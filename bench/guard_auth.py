"""Sends, signed and allowed by a policy, with authentication and authorization on, and plain ones with both off.

    python -m bench.guard_auth [--count 100000] [--rounds 5] [--json]

Code 310 with a JSON header, 1,000 in flight, signed before the measurement: only the broker's work is compared.
The bar: at least 0.6 of the sends a second without access control.
"""

import argparse
import json
import os
from collections.abc import Iterator
from functools import partial

import trio

from bench.harness import Row, cluster, in_turn, row, show
from bench.traffic import QUEUES, TOPIC, make_topic, pipeline
from skylark import Admin
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import Credentials, sign

ROOT = Credentials("root", "root-secret")
USER = Credentials("bench", "bench-secret")
ON = ("--authentication-enabled", "true", "--authorization-enabled", "true")
# Secrets are no options of the command line; brokers without authentication have this user, too, but do not ask.
FIRST_USER = json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key})


def frames(count: int, body: bytes, credentials: Credentials | None) -> list[bytes]:
    """Sends as official clients make them."""
    made = []
    for number in range(count):
        ext = {
            "a": "bench",
            "b": TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": str(number % QUEUES),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": f"UNIQ_KEY\x017F0000012A9918B4AAC2{number:012X}\x02",
            "j": "0",
            "k": "false",
            "m": "false",
            "n": "bench",
        }
        request = Command(SEND_MESSAGE_V2.code, ext, body, opaque=number, language="JAVA")
        if credentials is not None:
            sign(request, credentials)
        made.append(encode(request))
    return made


async def prepare(broker: str) -> None:
    """The user, who may send to this topic among others, and the topic."""
    entries = [PolicyEntryInfo(resource, ["Pub"], None, "Allow") for resource in ("Topic:a*", "Topic:b*", "Group:*")]
    async with Admin("", credentials=ROOT) as admin:
        await admin.create_user(broker, UserInfo(USER.access_key, USER.secret_key))
        await admin.create_acl(broker, AclInfo(f"User:{USER.access_key}", [PolicyInfo("Custom", entries)]))
        await admin.create_topic(broker, TopicConfig(TOPIC, QUEUES, QUEUES))


def rows(count: int, rounds: int) -> Iterator[Row]:
    """All figures, for small messages and for messages of 1 KiB."""
    os.environ["ROCKETMQ_INIT_AUTHENTICATION_USER"] = FIRST_USER
    with cluster(options=ON) as guarded, cluster() as plain:
        trio.run(prepare, guarded.broker)
        trio.run(make_topic, plain)
        for size in (100, 1_024):
            body = b"x" * size
            signed, unsigned = frames(count, body, USER), frames(count, body, None)
            ours, limit = in_turn(
                rounds,
                partial(trio.run, pipeline, guarded.broker, signed, 1_000, b'"code":0'),
                partial(trio.run, pipeline, plain.broker, unsigned, 1_000, b'"code":0'),
            )
            yield row(f"sends of {size} bytes, users and policies on / off", "msg/s", ours, limit, rounds)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    show(rows(options.count, options.rounds), options.json)


if __name__ == "__main__":
    main()
