"""The dearest request of each code that is accepted, and how long it keeps the event loop.

    python -m bench.dearest_requests [--json] [--rounds N] [CODE ...]

A second connection sends a small request all the time; its longest wait while a request is handled shows how long other
connections were held up. The limit is its longest wait while the daemon is idle. Rows are sorted, the dearest first.
"""

import argparse
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.harness import Row, cluster, row, show
from skylark.mqcommon.message.batch import MAX_MESSAGES, encode_batch
from skylark.remoting.protocol.body import Body, DataVersion
from skylark.remoting.protocol.command import VERSION, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.brokers import (
    CLEAN_UNUSED_TOPIC,
    GET_BROKER_CONFIG,
    GET_BROKER_RUNTIME_INFO,
    UPDATE_BROKER_CONFIG,
    VIEW_BROKER_STATS_DATA,
)
from skylark.remoting.protocol.requests.clients import (
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.groups import (
    DELETE_SUBSCRIPTIONGROUP,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_CONSUME_STATS,
    QUERY_TOPICS_BY_CONSUMER,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    SubscriptionGroupConfig,
)
from skylark.remoting.protocol.requests.offsets import (
    GET_ALL_CONSUMER_OFFSET,
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
)
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.query import QUERY_CONSUME_QUEUE, QUERY_MESSAGE, VIEW_MESSAGE_BY_ID
from skylark.remoting.protocol.requests.registrations import (
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    RegisterBrokerBody,
    encode_compressed,
)
from skylark.remoting.protocol.requests.routes import (
    ADD_WRITE_PERM_OF_BROKER,
    DELETE_TOPIC_IN_NAMESRV,
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_CLUSTER_INFO,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    GET_ROUTEINFO_BY_TOPIC,
    GET_SYSTEM_TOPIC_LIST_FROM_NS,
    GET_TOPICS_BY_CLUSTER,
    GET_UNIT_TOPIC_LIST,
    PUT_KV_CONFIG,
    UPDATE_NAMESRV_CONFIG,
    WIPE_WRITE_PERM_OF_BROKER,
)
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE
from skylark.remoting.protocol.requests.topics import (
    DELETE_TOPIC_IN_BROKER,
    GET_ALL_TOPIC_CONFIG,
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    UPDATE_AND_CREATE_TOPIC,
    TopicConfig,
    TopicConfigTable,
)

QUEUES = 65_536
TOPICS = 2_000
MEMBERS = 500
QUIET_S = 0.3
TIMEOUT_S = 20
TAGS = "||".join(f"{n:x}" for n in range(6_000))[:32_000]
WIDE = {"topic": "Wide", "consumerGroup": "g"}
BROKER_NAME = {"brokerName": "many", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "brokerId": "0"}


class Peer:
    """A connection that waits for each answer."""

    def __init__(self, addr: str) -> None:
        host, _, port = addr.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._connection = Connection()

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """The answer; code -1 when the daemon closed the connection or took too long."""
        try:
            self._socket.sendall(encode(Command(code, ext or {}, body, opaque=1)))
            while True:
                data = self._socket.recv(1 << 20)
                if not data:
                    return Command(-1, remark="no answer")
                for answer in self._connection.receive_data(data):
                    if answer.is_response:
                        return answer
        except (ConnectionError, TimeoutError):
            return Command(-1, remark="no answer")

    def close(self) -> None:
        self._socket.close()


class Probe:
    """Sends small requests all the time; `take_ms` returns the longest wait since the last call."""

    def __init__(self, addr: str, code: int, ext: dict[str, Any]) -> None:
        self._peer = Peer(addr)
        self._request = (code, ext)
        self._longest = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            started = time.perf_counter()
            self._peer.ask(*self._request)
            self._longest = max(self._longest, time.perf_counter() - started)
            time.sleep(0.0005)

    def take_ms(self) -> float:
        longest, self._longest = self._longest, 0.0
        return longest * 1000

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        self._peer.close()


@dataclass(frozen=True)
class Dear:
    """A request; ``what`` says why it is dear."""

    code: int
    what: str
    ext: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.code} {self.what}"


def body_of(body: Body) -> bytes:
    return encode_body(body)


def send_ext(topic: str, queue_id: int = 0, properties: str = "", **more: Any) -> dict[str, Any]:
    return {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        **more,
    }


def pull_ext(**changes: str) -> dict[str, Any]:
    return {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        **changes,
    }


def topic_ext(name: str, queues: int) -> dict[str, Any]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def prepare_broker(peer: Peer) -> None:
    """Topics, messages and offsets."""
    peer.ask(UPDATE_AND_CREATE_TOPIC.code, topic_ext("Wide", QUEUES))
    for number in range(TOPICS):
        peer.ask(UPDATE_AND_CREATE_TOPIC.code, topic_ext(f"Topic-{number:05d}", 8))
        peer.ask(
            UPDATE_CONSUMER_OFFSET.code,
            {"consumerGroup": "g", "topic": f"Topic-{number:05d}", "queueId": "0", "commitOffset": "1"},
        )
    rows = [(0, b"x", b"KEYS\x01often\x02UNIQ_KEY\x01%032d\x02" % number) for number in range(2_000)]
    for _ in range(10):
        peer.ask(SEND_MESSAGE.code, send_ext("T", batch="true"), encode_batch(rows))


def broker_requests() -> list[Dear]:
    """Requests about messages, topics and the broker itself."""
    key = {"topic": "T", "key": "often", "beginTimestamp": "0"}
    many, too_many = (encode_batch([(0, b"", b"")] * count) for count in (MAX_MESSAGES, 190_000))
    return [
        Dear(
            SEND_MESSAGE.code,
            "4 MiB and 32,000 bytes of properties",
            send_ext("T", properties="a\x01b\x02" * 8_000),
            bytes(4 << 20),
        ),
        Dear(SEND_MESSAGE.code, f"a batch of {MAX_MESSAGES:,} empty messages", send_ext("T", batch="true"), many),
        Dear(SEND_MESSAGE.code, "a batch of 190,000 empty messages", send_ext("T", batch="true"), too_many),
        Dear(PULL_MESSAGE.code, "a subscription of 32,000 characters", pull_ext(subscription=TAGS)),
        Dear(PULL_MESSAGE.code, "a tag that 20,000 messages do not have", pull_ext(subscription="none")),
        Dear(
            QUERY_MESSAGE.code,
            "a key of 20,000 messages, at another time",
            {**key, "maxNum": "64", "endTimestamp": "1000"},
        ),
        Dear(
            QUERY_MESSAGE.code,
            "a key of 20,000 messages, all of them",
            {**key, "maxNum": "100000", "endTimestamp": str(1 << 60)},
        ),
        Dear(QUERY_CONSUMER_OFFSET.code, "a queue", {**WIDE, "queueId": "0"}),
        Dear(UPDATE_CONSUMER_OFFSET.code, "a queue", {**WIDE, "queueId": "9", "commitOffset": "1"}),
        Dear(UPDATE_AND_CREATE_TOPIC.code, f"{QUEUES} queues", topic_ext("Wide2", QUEUES)),
        Dear(GET_ALL_TOPIC_CONFIG.code, f"{TOPICS} topics"),
        Dear(UPDATE_BROKER_CONFIG.code, "1,000 lines", body=b"brokerPermission=6\n" * 1_000),
        Dear(UPDATE_BROKER_CONFIG.code, "15 MB of lines", body=b"brokerPermission=6\n" * 800_000),
        Dear(GET_BROKER_CONFIG.code, "all"),
        Dear(GET_BROKER_RUNTIME_INFO.code, "all"),
        Dear(SEARCH_OFFSET_BY_TIMESTAMP.code, "20,000 messages", {"topic": "T", "queueId": "0", "timestamp": "1"}),
        Dear(GET_EARLIEST_MSG_STORETIME.code, "20,000 messages", {"topic": "T", "queueId": "0"}),
        Dear(VIEW_MESSAGE_BY_ID.code, "the first", {"offset": "0"}),
    ]


def client_requests() -> list[Dear]:
    """Requests about heartbeats, members and offsets."""
    groups = [ConsumerData(f"new-{n}", subscription_data_set=[SubscriptionData("T")]) for n in range(900)]
    tags = [ConsumerData("g", subscription_data_set=[SubscriptionData(f"T{n}", TAGS[:30_000]) for n in range(2)])]
    config = SubscriptionGroupConfig("g", attributes={f"k{n}": "v" for n in range(4_000)})
    unknown = ";".join(f"n{n}" for n in range(60_000))
    return [
        Dear(HEART_BEAT.code, "900 groups", body=body_of(HeartbeatData("c", [], groups))),
        Dear(HEART_BEAT.code, "60,000 characters of tags", body=body_of(HeartbeatData("c", [], tags))),
        Dear(
            HEART_BEAT.code,
            "15 MB of {}",
            body=b'{"clientID":"c","consumerDataSet":[' + b",".join([b"{}"] * 5_000_000) + b"]}",
        ),
        Dear(GET_CONSUMER_LIST_BY_GROUP.code, f"{MEMBERS} members", {"consumerGroup": "crowd"}),
        Dear(GET_ALL_CONSUMER_OFFSET.code, f"{TOPICS} topics"),
        Dear(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, "4,000 attributes", body=body_of(config)),
        Dear(GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code, "all"),
        Dear(GET_TOPIC_STATS_INFO.code, f"{QUEUES} queues", {"topic": "Wide"}),
        Dear(GET_CONSUMER_CONNECTION_LIST.code, f"{MEMBERS} members", {"consumerGroup": "crowd"}),
        Dear(GET_PRODUCER_CONNECTION_LIST.code, f"{MEMBERS} members", {"producerGroup": "crowd"}),
        Dear(GET_CONSUME_STATS.code, f"{QUEUES} queues", WIDE),
        Dear(GET_CONSUME_STATS.code, "a topic 42,000 times", {"consumerGroup": "g", "topicList": "Wide;" * 42_000}),
        Dear(GET_CONSUME_STATS.code, "60,000 topics that are not there", {"consumerGroup": "g", "topicList": unknown}),
        Dear(QUERY_TOPIC_CONSUME_BY_WHO.code, f"{TOPICS} offsets", {"topic": "Topic-00001"}),
        Dear(GET_SYSTEM_TOPIC_LIST_FROM_BROKER.code, f"{TOPICS} topics"),
        Dear(VIEW_BROKER_STATS_DATA.code, "a counter", {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}),
        Dear(CLEAN_UNUSED_TOPIC.code, "none"),
        Dear(QUERY_CONSUME_QUEUE.code, "all entries", {"topic": "T", "queueId": "0", "index": "0", "count": "1000000"}),
        Dear(QUERY_TOPICS_BY_CONSUMER.code, f"{TOPICS} offsets", {"group": "g"}),
        Dear(DELETE_SUBSCRIPTIONGROUP.code, f"{TOPICS} offsets", {"groupName": "g", "cleanOffset": "true"}),
        Dear(DELETE_TOPIC_IN_BROKER.code, f"{QUEUES} queues", {"topic": "Wide2"}),
    ]


def namesrv_requests() -> list[Dear]:
    topics = {
        f"a-topic-of-usual-length-{n:06d}": TopicConfig(f"a-topic-of-usual-length-{n:06d}") for n in range(20_000)
    }
    table = RegisterBrokerBody(TopicConfigTable(DataVersion(0, 1, 1), topics))
    ext = {**BROKER_NAME, "haServerAddr": "", "compressed": "false", "bodyCrc32": "0"}
    by_name = {"brokerName": "many"}
    value = "x" * 400_000
    return [
        Dear(REGISTER_BROKER.code, "20,000 topics", ext, body_of(table)),
        Dear(
            REGISTER_BROKER.code,
            "20,000 topics, compressed",
            {**ext, "compressed": "true"},
            encode_compressed(table, VERSION),
        ),
        Dear(GET_ROUTEINFO_BY_TOPIC.code, "one", {"topic": "a-topic-of-usual-length-000000"}),
        Dear(GET_BROKER_CLUSTER_INFO.code, "all"),
        Dear(GET_ALL_TOPIC_LIST_FROM_NAMESERVER.code, "20,000 topics"),
        Dear(GET_TOPICS_BY_CLUSTER.code, "20,000 topics", {"cluster": "c"}),
        Dear(GET_SYSTEM_TOPIC_LIST_FROM_NS.code, "20,000 topics"),
        Dear(GET_UNIT_TOPIC_LIST.code, "20,000 topics"),
        Dear(PUT_KV_CONFIG.code, "400 KB", {"namespace": "n", "key": "k", "value": value}),
        Dear(GET_KVLIST_BY_NAMESPACE.code, "400 KB", {"namespace": "n"}),
        Dear(QUERY_DATA_VERSION.code, "15 MB of {}", BROKER_NAME, b"[" + b",".join([b"{}"] * 5_000_000) + b"]"),
        Dear(UPDATE_NAMESRV_CONFIG.code, "15 MB of lines", body=b"orderMessageEnable=true\n" * 650_000),
        Dear(WIPE_WRITE_PERM_OF_BROKER.code, "20,000 topics", by_name),
        Dear(ADD_WRITE_PERM_OF_BROKER.code, "20,000 topics", by_name),
        Dear(DELETE_TOPIC_IN_NAMESRV.code, "one", {"topic": "a-topic-of-usual-length-000000"}),
        Dear(UNREGISTER_BROKER.code, "20,000 topics", BROKER_NAME),
    ]


def crowd(addr: str) -> list[Peer]:
    """Connect many members of one group, for the requests that list members."""
    data = HeartbeatData(
        "c", [ProducerData("crowd")], [ConsumerData("crowd", subscription_data_set=[SubscriptionData("T")])]
    )
    members = []
    for number in range(MEMBERS):
        data.client_id = f"10.0.0.{number % 256}@client-{number}"
        members.append(Peer(addr))
        members[-1].ask(HEART_BEAT.code, body=body_of(data))
    return members


def measure(addr: str, probe: Probe, dear: Dear, rounds: int) -> Row:
    ours, limit = [], []
    answer = Command(-1)
    for _ in range(rounds):
        probe.take_ms()
        time.sleep(QUIET_S)
        limit.append(probe.take_ms())
        peer = Peer(addr)
        answer = peer.ask(dear.code, dear.ext, dear.body)
        time.sleep(0.02)  # work after the answer counts, too
        ours.append(probe.take_ms())
        peer.close()
    return row(f"{dear.name} -> {answer.code}", "ms", ours, limit, rounds, smaller_is_better=True)


def measured(addr: str, probe: Probe, requests: list[Dear], codes: list[int], rounds: int) -> Iterator[Row]:
    try:
        rows = [measure(addr, probe, each, rounds) for each in requests if not codes or each.code in codes]
    finally:
        probe.stop()
    yield from sorted(rows, key=lambda each: -each.ours)


def run(codes: list[int], rounds: int) -> Iterator[Row]:
    with cluster() as made:
        prepare_broker(Peer(made.broker))
        members = crowd(made.broker)
        probe = Probe(made.broker, GET_MAX_OFFSET.code, {"topic": "T", "queueId": "0"})
        yield from measured(made.broker, probe, broker_requests() + client_requests(), codes, rounds)
        for member in members:
            member.close()
        probe = Probe(made.nameserver, GET_KV_CONFIG.code, {"namespace": "none", "key": "k"})
        yield from measured(made.nameserver, probe, namesrv_requests(), codes, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("codes", nargs="*", type=int, help="only these request codes")
    args = parser.parse_args()
    show(run(args.codes, args.rounds), args.json)


if __name__ == "__main__":
    main()
