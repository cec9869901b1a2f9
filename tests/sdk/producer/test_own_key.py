"""Messages whose unique keys their senders chose, against a broker of ours in this process."""

from pathlib import Path

import pytest

from mqcommon.errors import InvalidArgument
from mqcommon.message.message import Message
from mqcommon.message.own_key import OwnKeyMessage
from sdk import Producer, PullConsumer
from tests.sdk.consumer.push_cluster import push_cluster

TOPIC = "one"


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\x01b", "x" * 256])
def test_keys_that_cannot_be_stored_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match="unique_key must be"):
        OwnKeyMessage(TOPIC, b"x", unique_key=key)


async def test_own_keys_are_stored_and_others_are_made_up(tmp_path: Path) -> None:
    async with push_cluster(tmp_path) as cluster:
        async with Producer(cluster.nameserver, compression="zlib") as producer:
            for message in (
                OwnKeyMessage(TOPIC, b"plain", unique_key="K1"),
                OwnKeyMessage(TOPIC, b"keyed", unique_key="K2", sharding_key="s", properties={"a": "b"}),
                OwnKeyMessage(TOPIC, b"z" * 5_000, unique_key="K3"),
            ):
                assert (await producer.send(message)).msg_id == message.unique_key
            mixed = [OwnKeyMessage(TOPIC, b"bulk", unique_key="K4"), Message(TOPIC, b"other"), b"bytes"]
            first, *rest = [result.msg_id for result in await producer.send_many(TOPIC, mixed)]
            assert first == "K4"
            assert len({first, *rest}) == 3
        async with PullConsumer(cluster.nameserver) as consumer:
            (mq,) = await consumer.message_queues(TOPIC)
            found = (await consumer.pull(mq, 0)).messages
            assert [message.msg_id for message in found] == ["K1", "K2", "K3", "K4", *rest]
