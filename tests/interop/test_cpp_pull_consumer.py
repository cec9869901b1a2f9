"""The official C++ pull consumer gets from our broker what was sent, by our producer in all its ways and by its own."""

from pathlib import Path

import trio

from skylark import Message, Producer
from skylark.mqcommon.message.message import MessageExt
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.interop import cpp
from tests.support.daemons import Cluster, in_threads, make_topic

TOPIC = "to-cpp"
CONFIG = TopicConfig(TOPIC, 4, 4)


def as_described(message: MessageExt) -> cpp.Described:
    """Our view of a message, in the C++ client's words."""
    return {
        "topic": message.topic,
        "id": message.msg_id,
        "body": message.body.decode(),
        "tags": message.tags or "",
        "keys": message.keys or "",
        "properties": {"colour": message.properties.get("colour", "")},
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "store_size": message.store_size,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
    }


async def both_read_the_same(cluster: Cluster) -> list[cpp.Described]:
    ours = [as_described(message) for message in await cpp.stored(cluster, TOPIC)]
    theirs = await cpp.pull(cluster, TOPIC, property_names=["colour"])
    assert theirs == ours
    return theirs


async def test_what_its_own_producer_sent(tmp_path: Path) -> None:
    sends = [
        {
            "how": "sync",
            "topic": TOPIC,
            "body": f"{number:03}",
            "tags": f"Tag{number % 3}",
            "keys": f"k{number} all",
            "properties": {"colour": "grün"},
        }
        for number in range(200)
    ]
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        await cpp.send(cluster, sends)
        pulled = await both_read_the_same(cluster)
    for send, message in zip(sends, pulled, strict=True):
        assert {name: message[name] for name in ("body", "tags", "keys", "properties")} == {
            name: send[name] for name in ("body", "tags", "keys", "properties")
        }


async def test_what_our_producer_sent_one_by_one(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        async with Producer(cluster.nameserver, batching=False) as producer:
            await producer.send(Message(TOPIC, b"0 plain"))
            await producer.send(
                Message(TOPIC, b"1 tagged", tags="TagA", keys=["k1", "k2"], properties={"colour": "red"})
            )
            await producer.send(Message(TOPIC, b"2 sharded", sharding_key="s", flag=7))
            text = "3 Straße 航班 ✈"
            await producer.send(
                Message(TOPIC, text.encode(), tags="航班", keys="ключ", properties={"colour": "зелёный"})
            )
            await producer.send(Message(TOPIC, b"4" * 100_000))
            last = await producer.send(Message(TOPIC, b"5"))
        pulled = await both_read_the_same(cluster)
    assert [message["body"] for message in pulled] == ["0 plain", "1 tagged", "2 sharded", text, "4" * 100_000, "5"]
    assert (pulled[1]["tags"], pulled[1]["keys"], pulled[1]["properties"]) == ("TagA", "k1 k2", {"colour": "red"})
    assert (pulled[3]["tags"], pulled[3]["keys"], pulled[3]["properties"]) == ("航班", "ключ", {"colour": "зелёный"})
    assert pulled[5]["id"] == last.msg_id


async def test_what_our_producer_sent_in_adaptive_batches(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        async with Producer(cluster.nameserver) as producer, trio.open_nursery() as nursery:
            for number in range(1_000):
                message = Message(TOPIC, b"%04d" % number, tags=f"T{number % 5}", keys=f"k{number}")
                nursery.start_soon(producer.send, message)
        pulled = await both_read_the_same(cluster)
    assert [(message["body"], message["tags"], message["keys"]) for message in pulled] == [
        (f"{number:04}", f"T{number % 5}", f"k{number}") for number in range(1_000)
    ]


async def test_what_our_producer_sent_in_bulk(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        async with Producer(cluster.nameserver) as producer:
            results = await producer.send_many(TOPIC, [b"%05d" % number for number in range(3_000)])
        pulled = await both_read_the_same(cluster)
    assert [message["body"] for message in pulled] == [f"{number:05}" for number in range(3_000)]
    assert [message["id"] for message in pulled] == [result.msg_id for result in results]


async def test_a_pull_with_tags_gets_these_only(tmp_path: Path) -> None:
    tags = ["TagA", "TagB", "TagC", "航班", "Aa", "BB"]  # the last two have one hash code
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        async with Producer(cluster.nameserver) as producer:
            await producer.send_many(TOPIC, [Message(TOPIC, f"{n} {t}".encode(), tags=t) for n, t in enumerate(tags)])
            await producer.send(Message(TOPIC, b"without"))
        found = [await cpp.pull(cluster, TOPIC, expression=asked) for asked in ("TagA || TagC", "TagD", "BB", "*")]
    assert [[message["tags"] for message in messages] for messages in found[:3]] == [["TagA", "TagC"], [], ["BB"]]
    assert len(found[3]) == 7
