"""A client with credentials signs whatever it sends, in the form in which it arrives."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mqcommon.errors import RemotingError
from remoting.net.channel import Channel
from remoting.net.client import RemotingClient, open_client
from remoting.net.server import Server
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import CBOR, JSON, OFFER_FIELD, Command
from remoting.protocol.signature import (
    ACCESS_KEY_FIELD,
    SECURITY_TOKEN_FIELD,
    SIGNATURE_FIELD,
    Credentials,
    is_signed_with,
)
from tests.remoting.net.served import serve

CODES = (1, 2, 3)
WHO = Credentials("somebody", "secret-1", "token")


class Seen:
    """A server that keeps the requests which it gets."""

    def __init__(self, client: RemotingClient, addr: str, requests: list[Command]) -> None:
        self.client, self.addr, self.requests = client, addr, requests

    async def last(self, count: int) -> Command:
        """The latest request, once there are ``count``."""
        with trio.fail_after(10):
            while len(self.requests) < count:
                await trio.testing.wait_all_tasks_blocked()
        return self.requests[-1]


@asynccontextmanager
async def connected(credentials: Credentials | None) -> AsyncIterator[Seen]:
    requests: list[Command] = []

    def take(channel: Channel, request: Command) -> Command:
        requests.append(request)
        return request.respond()

    async with (
        serve(Server(dict.fromkeys(CODES, take))) as served,
        open_client(connect=served.connect, credentials=credentials) as client,
    ):
        yield Seen(client, served.addr, requests)


async def test_every_kind_of_request_is_signed() -> None:
    async with connected(WHO) as seen:
        client, addr = seen.client, seen.addr
        await client.invoke(addr, Command(1, {"n": 5, "yes": True, "none": None}), body=KVTable({"a": "b"}))
        first = await seen.last(1)
        assert first.codec == JSON and (first.ext or {})[OFFER_FIELD], "the offer is signed, too"
        await client.invoke(addr, Command(1, {"n": 5, "yes": True, "none": None}), body=KVTable({"a": "b"}))
        assert (await seen.last(2)).codec == CBOR
        await client.invoke(addr, Command(1), body=b"{}")
        await client.oneway(addr, Command(2, {"x": "y"}), body=KVTable({"a": "b"}))
        await seen.last(4)
        client.push(addr, Command(3))
        await seen.last(5)
        command, answered = Command(1, {"b": "2", "a": 1}, b"body"), trio.Event()
        client.prepare(addr, command)
        client.submit(addr, command, 1_000, lambda _: answered.set())
        await answered.wait()
    assert len(seen.requests) == 6
    for request in seen.requests:
        ext = request.ext or {}
        assert (ext[ACCESS_KEY_FIELD], ext[SECURITY_TOKEN_FIELD]) == ("somebody", "token")
        assert is_signed_with(request, "secret-1"), request
        assert not is_signed_with(request, "secret-2")


async def test_a_request_that_is_sent_again_is_signed_again() -> None:
    async with connected(WHO) as seen:
        command = Command(1, {"a": "b"})
        await seen.client.invoke(seen.addr, command)
        command.body = b"changed"
        await seen.client.invoke(seen.addr, command)
    assert len(seen.requests) == 2
    assert all(is_signed_with(request, "secret-1") for request in seen.requests)


async def test_without_credentials_nothing_is_added() -> None:
    async with connected(None) as seen:
        await seen.client.invoke(seen.addr, Command(1))
        await seen.client.invoke(seen.addr, Command(1))
    assert seen.requests[1].ext is None
    assert SIGNATURE_FIELD not in (seen.requests[0].ext or {})


async def test_answers_to_the_server_are_not_signed() -> None:
    answers: list[Command | RemotingError] = []
    done = trio.Event()

    def answered(answer: Command | RemotingError) -> None:
        answers.append(answer)
        done.set()

    def ask_back(channel: Channel, request: Command) -> Command:
        channel.submit(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED), 1_000, answered)
        return request.respond()

    async with (
        serve(Server({1: ask_back})) as served,
        open_client(
            {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda channel, request: request.respond()},
            connect=served.connect,
            credentials=WHO,
        ) as client,
    ):
        await client.invoke(served.addr, Command(1))
        with trio.fail_after(10):
            await done.wait()
    (answer,) = answers
    assert isinstance(answer, Command)
    assert ACCESS_KEY_FIELD not in (answer.ext or {})


@pytest.mark.parametrize("wrong", [{"secret_key": None}, {"access_key": b"x"}, {"security_token": 1}])
def test_credentials_of_a_wrong_type_are_refused_without_showing_them(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be a str, not [a-zA-Z]+$"):
        Credentials(**({"access_key": "a", "secret_key": "b"} | wrong))  # type: ignore[arg-type]


def test_secrets_are_in_no_repr() -> None:
    assert repr(WHO) == "Credentials(access_key='somebody')"
