"""Sends, signed and allowed by an account of a file, with aclEnable, and plain ones with it off.

    python -m bench.guard_acl [--count 100000] [--rounds 5] [--json]

Code 310 with a JSON header, 1,000 in flight, signed before the measurement: only the broker's work is compared.
The bar: at least 0.6 of the sends a second without access control.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from functools import partial

import trio

from bench.guard_auth import USER, frames
from bench.harness import Row, cluster, in_turn, row, show
from bench.traffic import QUEUES, TOPIC, make_topic, pipeline
from skylark import Admin
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import Credentials

ROOT = Credentials("root-account", "root-secret")
# As many accounts as a company has.
OTHERS = 1_000
ACCOUNT = """
- accessKey: {name}
  secretKey: {secret}
  admin: {admin}
  topicPerms:
  - a=SUB
  - {topic}=PUB|SUB
  groupPerms:
  - bench=SUB
"""


def write_file(folder: str) -> str:
    """A plain_acl.yml with the account that sends, and others."""
    path = os.path.join(folder, "plain_acl.yml")
    accounts = [(ROOT.access_key, ROOT.secret_key, "true"), (USER_ACCOUNT.access_key, USER_ACCOUNT.secret_key, "false")]
    accounts += [(f"account-{number}", f"secret-{number}", "false") for number in range(OTHERS)]
    text = "globalWhiteRemoteAddresses:\n- 10.10.103.*\naccounts:"
    text += "".join(
        ACCOUNT.format(name=name, secret=secret, admin=admin, topic=TOPIC) for name, secret, admin in accounts
    )
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
    return path


USER_ACCOUNT = Credentials(f"{USER.access_key}-account", USER.secret_key)


async def prepare(broker: str) -> None:
    """The topic."""
    async with Admin("", credentials=ROOT) as admin:
        await admin.create_topic(broker, TopicConfig(TOPIC, QUEUES, QUEUES))


def rows(count: int, rounds: int) -> Iterator[Row]:
    """All figures, for small messages and for messages of 1 KiB."""
    with tempfile.TemporaryDirectory() as folder:
        on = ("--acl-enable", "true", "--acl-file", write_file(folder))
        with cluster(options=on) as guarded, cluster() as plain:
            trio.run(prepare, guarded.broker)
            trio.run(make_topic, plain)
            for size in (100, 1_024):
                body = b"x" * size
                signed, unsigned = frames(count, body, USER_ACCOUNT), frames(count, body, None)
                ours, limit = in_turn(
                    rounds,
                    partial(trio.run, pipeline, guarded.broker, signed, 1_000, b'"code":0'),
                    partial(trio.run, pipeline, plain.broker, unsigned, 1_000, b'"code":0'),
                )
                yield row(f"sends of {size} bytes, aclEnable on / off", "msg/s", ours, limit, rounds)


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
