"""Messages whose unique keys their senders chose, against a broker of ours in this process."""

from pathlib import Path

import pytest

from mqcommon.errors import InvalidArgument
from mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys
from sdk import Producer, PullConsumer
from tests.sdk.consumer.push_cluster import push_cluster

TOPIC = "one"


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\x01b", "x" * 256])
def test_keys_that_cannot_be_stored_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match="a unique key must be"):
        OwnKeyMessage(TOPIC, b"x", unique_key=key)


def test_each_message_of_many_needs_its_key() -> None:
    with pytest.raises(InvalidArgument, match="there are 2 messages and 1 unique_keys"):
        WithOwnKeys([b"a", b"b"], ["K1"])
    with pytest.raises(InvalidArgument, match=r"a unique key must be .* not str 'a b'"):
        WithOwnKeys([b"a", b"b"], ["K1", "a b"])
    assert list(WithOwnKeys([b"a", b"b"], ["K1", "K2"])[1:]) == [b"b"]


async def test_own_keys_are_stored(tmp_path: Path) -> None:
    async with push_cluster(tmp_path) as cluster:
        async with Producer(cluster.nameserver, compression="zlib") as producer:
            for key, message in {
                "K1": OwnKeyMessage(TOPIC, b"plain", unique_key="K1"),
                "K2": OwnKeyMessage(TOPIC, b"keyed", unique_key="K2", sharding_key="s", properties={"a": "b"}),
                "K3": OwnKeyMessage(TOPIC, b"z" * 5_000, unique_key="K3"),
            }.items():
                assert (await producer.send(message)).msg_id == key
            many = WithOwnKeys(
                [Message(TOPIC, b"%d" % n) if n % 2 else b"%d" % n for n in range(2_000)],
                [f"M{n}" for n in range(2_000)],
            )
            assert [result.msg_id for result in await producer.send_many(TOPIC, many)] == [
                f"M{n}" for n in range(2_000)
            ]
            with pytest.raises(InvalidArgument, match=r"messages\[0\] has a unique key of its own"):
                await producer.send_many(TOPIC, [OwnKeyMessage(TOPIC, b"x", unique_key="K5")])
        async with PullConsumer(cluster.nameserver) as consumer:
            (mq,) = await consumer.message_queues(TOPIC)
            async with consumer.stream(mq, 0, 2_003) as batches:
                found = {message.msg_id: message.body async for batch in batches for message in batch}
            assert found["K1"] == b"plain"
            assert [found[f"M{n}"] for n in range(2_000)] == [b"%d" % n for n in range(2_000)]
