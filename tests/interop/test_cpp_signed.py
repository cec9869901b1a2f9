"""The official C++ client with session credentials signs every request, and we find its signatures right."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import GET_CONSUMER_LIST_BY_GROUP, HEART_BEAT, UNREGISTER_CLIENT
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD, is_signed_with
from tests.interop import cpp
from tests.support.daemons import in_threads, make_topic
from tests.support.waiting import until

TOPIC = "signed-cpp"
ACCESS_KEY, SECRET_KEY = "cpp-application", "a secret of some length"
CREDENTIALS = [ACCESS_KEY, SECRET_KEY, "ALIYUN"]


class Seen(NamedTuple):
    code: int
    is_signed: bool


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Seen]]:
    """The requests of C++ clients that servers of this process get."""
    requests: list[Seen] = []
    dispatch = Server._dispatch

    def noting(server: Server, channel: Channel, request: Command) -> None:
        if request.language == "CPP":
            is_ours = (request.ext or {}).get(ACCESS_KEY_FIELD) == ACCESS_KEY
            requests.append(Seen(request.code, is_ours and is_signed_with(request, SECRET_KEY)))
        dispatch(server, channel, request)

    monkeypatch.setattr(Server, "_dispatch", noting)
    yield requests


async def test_every_request_of_a_producer_and_of_consumers_is_signed(tmp_path: Path, seen: list[Seen]) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        sends = [{"how": how, "topic": TOPIC, "body": "ü" * 50, "tags": "a"} for how in ("sync", "async", "oneway")]
        batch = {"how": "batch", "topic": TOPIC, "messages": [{"topic": TOPIC, "body": str(n)} for n in range(3)]}
        await cpp.send(cluster, [*sends, batch], credentials=CREDENTIALS)
        sent = 6 - cpp.oneway_given_up(cluster)
        assert len(await cpp.pull(cluster, TOPIC, credentials=CREDENTIALS)) == sent
        async with cpp.pushing(cluster, "cpp-signed", TOPIC, credentials=CREDENTIALS) as consumer:
            await until(lambda: len(consumer.messages) >= sent, "all messages are consumed")
    assert [each for each in seen if not each.is_signed] == []
    assert {each.code for each in seen} >= {
        GET_ROUTEINFO_BY_TOPIC.code, PULL_MESSAGE.code, HEART_BEAT.code,
        GET_CONSUMER_LIST_BY_GROUP.code, UNREGISTER_CLIENT.code,
    }  # fmt: skip


async def test_a_wrong_secret_is_found(tmp_path: Path, seen: list[Seen]) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        send = {"how": "sync", "topic": TOPIC, "body": "x"}
        await cpp.send(cluster, [send], credentials=[ACCESS_KEY, "another secret", "ALIYUN"])
    assert seen and not any(each.is_signed for each in seen)
