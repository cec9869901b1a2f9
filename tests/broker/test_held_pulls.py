"""Held pulls through a whole broker: the first message of a queue, and connections that close."""

import pytest
import trio

from broker.delivery.held_pulls import HeldPull, HeldPulls
from broker.store.queue.consumequeue import ConsumeQueue
from mqcommon.errors import RemotingError
from remoting.net.client import RemotingClient, open_client
from tests.broker.running import pull_request, running, send_request
from tests.broker.test_send_pull import messages
from tests.support.waiting import until

# Longer than a test may take: no pull here ends with its time.
HELD_MS = 600_000


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[HeldPulls]:
    """What held each pull."""
    holders: list[HeldPulls] = []
    hold = HeldPulls.hold

    def noted(self: HeldPulls, pull: HeldPull, queue: ConsumeQueue | None) -> bool:
        holders.append(self)
        return hold(self, pull, queue)

    monkeypatch.setattr(HeldPulls, "hold", noted)
    return holders


async def test_a_pull_of_a_queue_without_messages_is_answered_with_its_first(held: list[HeldPulls]) -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("t", b"makes the topic"))
        answers = []

        async def pull() -> None:
            request = pull_request("t", 0, queue_id=3, wait_ms=HELD_MS, subscription="a || b")
            answers.append(await client.invoke(addr, request, HELD_MS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await until(lambda: len(held) == 1, "a held pull")
            await client.invoke(addr, send_request("t", b"first", queue_id=3, properties="TAGS\x01a\x02"))
        assert [message.body for message in messages(answers[0])] == [b"first"]


async def test_the_held_pulls_of_a_connection_that_closes_are_forgotten(held: list[HeldPulls]) -> None:
    async with running() as (client, addr), open_client() as leaving:
        await client.invoke(addr, send_request("t", b"makes the topic"))

        async def pull(by: RemotingClient) -> None:
            with pytest.raises(RemotingError):
                await by.invoke(addr, pull_request("t", 1, wait_ms=HELD_MS), HELD_MS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull, leaving)
            nursery.start_soon(pull, client)
            await until(lambda: len(held) == 2, "held pulls")
            leaving.close_connection(addr, "on purpose")
            await until(lambda: len(held[0]) == 1, "those of the closed connection are dropped")
            client.close_connection(addr, "on purpose")
            await until(lambda: len(held[0]) == 0, "those of the closed connection are dropped")
