"""Requests of all codes, with odd values in their fields and bodies. A seed makes the same ones again.

Most begin as a frame recorded from RocketMQ's clients and brokers, or as a header of ours filled with odd values, so
that they get past the first checks. Names of the honest clients' topics, groups and brokers never occur: a request that
deletes what it names may do so.
"""

from dataclasses import is_dataclass
from random import Random
from typing import Any

import cbor2
import orjson

from skylark.mqcommon.message.batch import encode_batch
from skylark.remoting.protocol.command import CBOR, FLAG_ONEWAY, JSON, ROCKETMQ, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.header import Header, header_fields
from skylark.remoting.protocol.requests import table
from skylark.remoting.protocol.requests.brokers import DELETE_EXPIRED_COMMITLOG, UPDATE_BROKER_CONFIG
from skylark.remoting.protocol.requests.pulls import LITE_PULL_MESSAGE, PULL_MESSAGE
from skylark.remoting.protocol.requests.registrations import REGISTER_BROKER
from skylark.remoting.protocol.requests.routes import UPDATE_NAMESRV_CONFIG
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE
from tests.remoting.protocol.golden import recorded, recorded_by_fake_server

RECORDED = ("admin_5.3.3", "admin_4.9.8", "broker_namesrv", "cpp", "java_json", "java_rocketmq")
# Held pulls end soon: their number is then bounded by how fast they come.
SUSPEND_MS = ("1", "1000", "15000", "30000", "-1", str(2**63 - 1))
CODES = sorted(table.BY_CODE)
# These stop a daemon's work on request, for everybody: an administrator may do so.
FOR_ADMINISTRATORS = {
    UPDATE_BROKER_CONFIG.code,
    UPDATE_NAMESRV_CONFIG.code,
    DELETE_EXPIRED_COMMITLOG.code,
}
# Brokers and clusters in the recorded frames.
NAMES = {"broker-a": "broker-fuzzed", "DefaultCluster": "FuzzedCluster"}
TOPICS = ("fuzzed", "fuzzed-2", "%RETRY%fuzzed", "%DLQ%fuzzed", "SCHEDULE_TOPIC_XXXX", "no-such-topic", "TBW102")
NUMBERS = (0, 1, -1, 2, 7, 64, 65_535, 65_536, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63), 10**30)
TEXTS = (
    "", " ", "\0", "a\0b", "\x01", "\x02", "a\x01b\x02", "é中😀", "NaN", "Infinity", "1e999", "-0", "0x10", "true",
    "null", "[]", "{}", "../../etc/passwd", "a/b", ".", "..", "*", "a || b", "TAG", "SQL92", "%RETRY%", "[::1]:1",
    "127.0.0.1:1", "999.1.1.1:99999", "|" * 100, "t" * 127, "t" * 128, "t" * 256, "x" * 40_000,
)  # fmt: skip
ODD_BODIES = (
    b"", b"\0", b"{", b"}", b"[]", b"{}", b"null", b"[" * 10_000, b'{"a":' * 10_000, b"{{}:1}", b"{1:2,}", b"\xff" * 50,
    b"\xbf" * 2_000, b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff", b"k=v\n", b"=\n", b"a" * 70_000,
)  # fmt: skip

# As few as this: what names topics, groups and KV pairs stays, and is no leak.
ODD_NAMES = tuple(
    "".join(chr(random.randrange(1, 0x400)) for _ in range(random.randrange(30))) for random in [Random(8)] * 20
)


def _header_classes() -> list[type[Header]]:
    # A class that is made again with slots leaves its first form behind until a garbage collection.
    found = [each for each in Header.__subclasses__() if is_dataclass(each)]
    return sorted(found, key=lambda one: one.__name__)


HEADERS = _header_classes()


def _recorded() -> list[Command]:
    found: list[Command] = []
    for row in recorded(*RECORDED):
        if row.is_request:
            found.append(row.command)
    for frame in recorded_by_fake_server():
        found += Connection().receive_data(frame)
    for command in found:
        command.ext = {name: _renamed(value) for name, value in (command.ext or {}).items()}
        for old, new in NAMES.items():
            command.body = command.body.replace(old.encode(), new.encode())
    return found


def _renamed(value: Any) -> Any:
    for old, new in NAMES.items():
        value = value.replace(old, new) if isinstance(value, str) else value
    return value


SEEDS = _recorded()


class Requests:
    """An endless supply."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def frame(self) -> bytes:
        """One framed request."""
        while True:
            command = self._command()
            try:
                return encode(command)
            except (ValueError, TypeError, OverflowError, UnicodeError):
                continue  # our own encoders refuse it; `damaged` makes what they would not

    def damaged(self) -> bytes:
        """A frame with wrong bytes in it; its lengths may be wrong, too."""
        data = bytearray(self.frame())
        for _ in range(self._random.choice((1, 1, 2, 8))):
            data[self._random.randrange(len(data))] = self._random.getrandbits(8)
        return bytes(data)

    def pulls(self) -> bytes:
        """A message, and many pulls that are held at its queue's end, or that ask for what is not there."""
        send = Command(SEND_MESSAGE.code, {
            "producerGroup": "fuzzed", "topic": "fuzzed", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0",
            "flag": "0", "properties": f"TAGS\x01{self._random.choice(TEXTS[:13])}\x02", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
        }, b"body")  # fmt: skip
        count = self._random.choice((1, 20, 300))
        return encode(send) + b"".join(encode(self._pull(opaque)) for opaque in range(count))

    def _pull(self, opaque: int) -> Command:
        random = self._random
        subscription = random.choice(
            ("*", "", "a||b", "||".join(map(str, range(random.choice((1, 10, 1000))))), *TEXTS)
        )
        code = random.choice((PULL_MESSAGE.code, LITE_PULL_MESSAGE.code))
        return Command(code, {
            "consumerGroup": "fuzzed", "topic": "fuzzed", "queueId": str(random.randrange(4)),
            "queueOffset": str(random.choice((0, 1, 10**6, *range(100)))), "maxMsgNums": "32",
            "sysFlag": str(random.choice((6, 6, 6, 2, 7, 14))), "commitOffset": str(random.choice(NUMBERS[:10])),
            "suspendTimeoutMillis": random.choice(SUSPEND_MS), "subscription": subscription, "subVersion": "0",
            "expressionType": random.choice(("TAG", "TAG", "", "SQL92")),
        }, opaque=opaque)  # fmt: skip

    def registration(self) -> bytes:
        """A broker with many topics; some of them, or their numbers, are odd."""
        random = self._random
        topics = {
            f"fuzzed-{number}": {
                "topicName": f"fuzzed-{number}", "perm": 6, "readQueueNums": 4,
                "writeQueueNums": random.choice((4, 4, 4, *NUMBERS[:12])), "topicSysFlag": 0, "order": False,
            }
            for number in range(random.choice((1, 100, 5_000)))
        }  # fmt: skip
        topics[random.choice(TEXTS)] = {"perm": 6}
        version = {"timestamp": random.choice(NUMBERS[:12]), "counter": random.choice(NUMBERS[:12]), "stateVersion": 0}
        wrapper = {"topicConfigTable": topics, "dataVersion": version}
        ext = {
            "brokerName": f"broker-fuzzed-{random.randrange(4)}", "brokerAddr": f"127.0.0.1:{random.randrange(1, 5)}",
            "brokerId": str(random.choice((0, 0, 1, 2, -1, 2**63 - 1))), "clusterName": "FuzzedCluster",
            "haServerAddr": "", "compressed": "false", "bodyCrc32": "0",
            "heartbeatTimeoutMillis": str(random.choice(NUMBERS)),
        }  # fmt: skip
        body = orjson.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})
        return encode(Command(REGISTER_BROKER.code, ext, body))

    def _command(self) -> Command:
        random = self._random
        if random.random() < 0.5:
            seed = random.choice(SEEDS)
            command = Command(seed.code, dict(seed.ext or {}), seed.body, seed.flag, codec=seed.codec)
            command.language, command.version = seed.language, seed.version
            self._change(command)
        else:
            command = Command(random.choice(CODES), self._fields(random.choice(HEADERS)), self._body())
            command.codec = random.choice((JSON, JSON, ROCKETMQ, CBOR))
        if random.random() < 0.1:
            command.flag ^= FLAG_ONEWAY
        if random.random() < 0.05:
            command.code = random.choice((*CODES, *NUMBERS[:8]))
        if command.code in FOR_ADMINISTRATORS:
            command.ext, command.body = {}, random.choice((b"noSuchKey=1\n", b"\xff\xfe", b"=" * 1000, b"a" * 100_000))
        command.opaque = random.getrandbits(31)
        return command

    def _change(self, command: Command) -> None:
        random, ext = self._random, command.ext or {}
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            if ext and random.random() < 0.7:
                name = random.choice(sorted(ext))
                if random.random() < 0.2:
                    del ext[name]
                else:
                    ext[name] = self._value()
            else:
                ext[random.choice(TEXTS)] = self._value()
        if random.random() < 0.3:
            command.body = self._body()
        elif command.body and random.random() < 0.5:
            body = bytearray(command.body)
            body[random.randrange(len(body))] = random.getrandbits(8)
            command.body = bytes(body[: random.randrange(len(body)) + 1] if random.random() < 0.3 else body)

    def _fields(self, header: type[Header]) -> dict[str, Any]:
        named = header_fields(header, self._random.random() < 0.2)
        return {each.wire: self._value() for each in named if each.wire and self._random.random() < 0.95}

    def _value(self) -> Any:
        random = self._random
        return random.choice((
            lambda: random.choice(TOPICS),
            lambda: random.choice(TEXTS),
            lambda: str(random.choice(NUMBERS)),
            lambda: random.choice(NUMBERS),
            lambda: str(random.randrange(100)),
            lambda: random.choice((True, False, None, 1.5, [], ["a"], {"a": 1})),
            lambda: random.choice(ODD_NAMES),
        ))()  # fmt: skip

    def _body(self) -> bytes:
        random = self._random
        kind = random.randrange(6)
        if kind == 0:
            return random.choice(ODD_BODIES)
        if kind == 1:
            return random.randbytes(random.choice((1, 10, 1_000, 100_000)))
        if kind == 2:
            rows = [
                (random.getrandbits(31), random.randbytes(random.randrange(50)), random.choice(TEXTS)[:3000].encode())
                for _ in range(random.randrange(40))
            ]
            return encode_batch(rows)
        if kind == 3:
            return self._list_of_many()
        document = self._document(0)
        return orjson.dumps(document) if kind == 4 else cbor2.dumps(document)

    def _document(self, depth: int) -> Any:
        random = self._random
        if depth > 3 or random.random() < 0.3:
            value = self._value()
            return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
        if random.random() < 0.3:
            return [self._document(depth + 1) for _ in range(random.randrange(5))]
        return {random.choice(MEMBERS): self._document(depth + 1) for _ in range(random.randrange(8))}

    def _list_of_many(self) -> bytes:
        """A body whose cost may grow faster than its size."""
        one = self._random.choice(
            (b"{}", b'"t"', b"0", b"{1:2}", b'{"topic":"fuzzed","queueId":0,"brokerName":"b"}', b"[]")
        )
        member = self._random.choice(MEMBERS).encode()
        return b'{"' + member + b'":[' + b",".join([one] * self._random.choice((10, 1_000, 100_000))) + b"]}"


MEMBERS = (
    "topic", "topicList", "topicConfigTable", "topicConfigSerializeWrapper", "dataVersion", "counter", "brokerName",
    "consumerGroup", "groupName", "clientID", "clientId", "mqSet", "consumerDataSet", "producerDataSet", "tagsSet",
    "codeSet", "subscriptionDataSet", "subString", "subVersion", "readQueueNums", "writeQueueNums", "perm",
    "attributes", "offsetTable", "table", "filterServerList", "brokerDatas", "queueDatas", "topicName", "queueId",
    "retryQueueNums",
)  # fmt: skip
