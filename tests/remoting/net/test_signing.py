"""A client with credentials signs whatever it sends, in the form in which it arrives."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import ConnectFailed, PlainSignatureOnly, RemotingError
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.server import Handler, RunInTask, Server, not_supported
from skylark.remoting.net.transport import Transport
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, FLAG_ONEWAY, JSON, OFFER_CBOR, OFFER_FIELD, Command
from skylark.remoting.protocol.requests.clients import CHALLENGE, NOTIFY_CONSUMER_IDS_CHANGED
from skylark.remoting.protocol.signature import (
    ACCESS_KEY_FIELD,
    SECURITY_TOKEN_FIELD,
    SERVER_FIELD,
    SIGNATURE_FIELD,
    Credentials,
    WholeSignatures,
    is_signed_with,
)
from tests.remoting.net.served import serve
from tests.support.waiting import DEADLINE_S

CODES = (1, 2, 3)
WHO = Credentials("somebody", "secret-1", "token")


#: Servers that clients with credentials meet: how requests are signed there, and the header types that are seen.
OURS, UNBOUND, OLD = "a Skylark", "a Skylark that does not read the server's address", "a Skylark before the challenge"
ROCKETMQ = "a RocketMQ"
SERVERS = {
    OURS: (True, {CBOR, JSON}), UNBOUND: (True, {CBOR, JSON}), OLD: (False, {CBOR, JSON}), ROCKETMQ: (False, {JSON}),
}  # fmt: skip


def made(kind: str, handlers: Mapping[int, Handler]) -> Server:
    """A server of this kind."""
    if kind == OURS:
        return Server(handlers)
    if kind == UNBOUND:
        server = Server(handlers)
        ours = server._challenge

        def challenge(channel: Channel, request: Command) -> Command:
            request.ext = {OFFER_FIELD: OFFER_CBOR}
            return ours(channel, request)

        server.replace_handlers({**handlers, CHALLENGE.code: challenge}, {})
        return server
    server = Server({CHALLENGE.code: lambda channel, request: not_supported(request), **handlers})
    if kind == ROCKETMQ:
        server._greeting = {}
    return server


class Seen:
    """A server that keeps the requests which it gets."""

    def __init__(self, client: RemotingClient, addr: str, requests: list[Command], server: Server) -> None:
        self.client, self.addr, self.requests, self.server = client, addr, requests, server

    async def last(self, count: int) -> Command:
        """The latest request, once there are ``count``."""
        with trio.fail_after(DEADLINE_S):
            while len(self.requests) < count:
                await trio.testing.wait_all_tasks_blocked()
        return self.requests[-1]

    @property
    def signatures(self) -> WholeSignatures | None:
        """The signatures of the connection."""
        (channel,) = self.server.channels
        return channel.signatures


@asynccontextmanager
async def connected(credentials: Credentials | None, kind: str = OURS) -> AsyncIterator[Seen]:
    requests: list[Command] = []

    def take(channel: Channel, request: Command) -> Command:
        requests.append(request)
        return request.respond()

    server = made(kind, dict.fromkeys(CODES, take))
    async with serve(server) as served, open_client(connect=served.connect, credentials=credentials) as client:
        yield Seen(client, served.addr, requests, server)


@pytest.mark.parametrize("kind", SERVERS)
async def test_every_kind_of_request_is_signed_as_the_server_can_check_it(kind: str) -> None:
    is_whole, codecs = SERVERS[kind]
    async with connected(WHO, kind) as seen:
        client, addr = seen.client, seen.addr
        await client.invoke(addr, Command(1, {"n": 5, "yes": True, "none": None}), body=KVTable({"a": "b"}))
        await client.invoke(addr, Command(1), body=b"{}")
        await client.oneway(addr, Command(2, {"x": "y"}), body=KVTable({"a": "b"}))
        await seen.last(3)
        client.push(addr, Command(3, flag=FLAG_ONEWAY))
        await seen.last(4)
        command, answered = Command(1, {"b": "2", "a": 1}, b"body"), trio.Event()
        client.prepare(addr, command)
        client.submit(addr, command, 1_000, lambda _: answered.set())
        client.flush(addr)
        await answered.wait()
        signatures = seen.signatures
    assert len(seen.requests) == 5
    assert {request.codec for request in seen.requests} == codecs
    assert (signatures is not None) == is_whole
    for request in seen.requests:
        ext = request.ext or {}
        assert (ext[ACCESS_KEY_FIELD], ext[SECURITY_TOKEN_FIELD]) == ("somebody", "token")
        assert (":" in ext[SIGNATURE_FIELD]) == is_whole
        assert OFFER_FIELD not in ext, "the offer went with the question for a challenge"
        assert is_signed_with(request, "secret-1", signatures), request
        assert not is_signed_with(request, "secret-2", signatures)
        assert is_signed_with(request, "secret-1") == (not is_whole), "on another connection"


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_request_that_is_sent_again_is_signed_again(kind: str) -> None:
    async with connected(WHO, kind) as seen:
        command = Command(1, {"a": "b"})
        await seen.client.invoke(seen.addr, command)
        command.body = b"changed"
        await seen.client.invoke(seen.addr, command)
        assert len(seen.requests) == 2
        assert all(is_signed_with(request, "secret-1", seen.signatures) for request in seen.requests)


async def test_a_request_moves_from_a_server_of_ours_to_another_kind_and_back() -> None:
    command = Command(1, {"a": "b"})
    async with connected(WHO) as ours, connected(WHO, OLD) as old:
        for seen in (ours, old, ours):
            assert (await seen.client.invoke(seen.addr, command)).code == ResponseCode.SUCCESS
            assert is_signed_with(seen.requests[-1], "secret-1", seen.signatures)


async def test_a_replay_is_refused_on_its_own_connection() -> None:
    """Whoever can write into the connection sends what they have seen there; signed requests in order are served."""
    async with connected(WHO) as seen:
        channel = await seen.client.channel(seen.addr, 1_000)
        sent = [Command(1, {"a": "b"}), Command(1, {"a": "c"})]
        for command in sent:
            assert (await seen.client.invoke(seen.addr, command)).code == ResponseCode.SUCCESS
        for command in sent:
            answer = await channel.invoke(command, 1_000)
            assert (answer.code, answer.remark) == (
                ResponseCode.NO_PERMISSION, "this signed request is not new"
            )  # fmt: skip
        assert (await seen.client.invoke(seen.addr, Command(1))).code == ResponseCode.SUCCESS
        assert len(seen.requests) == 3
        assert seen.server.refusals.counts["replays"] == 2


async def test_each_connection_has_its_own_challenge() -> None:
    async with connected(WHO) as seen:
        await seen.client.invoke(seen.addr, command := Command(1))
        first = seen.signatures
        seen.client.close_connection(seen.addr)
        await seen.client.invoke(seen.addr, Command(1))
        await trio.testing.wait_all_tasks_blocked()
        assert first is not None and seen.signatures is not None
        assert first.challenge != seen.signatures.challenge
        assert is_signed_with(command, "secret-1", first)
        assert not is_signed_with(command, "secret-1", seen.signatures)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda request: request.respond(ResponseCode.SYSTEM_BUSY, "busy"), r"\[2\] busy"),
        (lambda request: None, "no answer within [0-9]+ ms"),
    ],
)
async def test_without_an_answer_about_the_challenge_nothing_is_signed(
    answer: Callable[[Command], Command | None], why: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A server of ours that is busy has a challenge: RocketMQ's signature there would be a step back."""
    lost: list[str] = []
    server = Server({CHALLENGE.code: lambda channel, request: answer(request)})
    async with (
        serve(server) as served,
        open_client(connect=served.connect, credentials=WHO, on_lost=lambda addr: lost.append(addr)) as client,
    ):
        with pytest.raises(ConnectFailed, match=why):
            await client.invoke(served.addr, Command(1), 60_000)
        await trio.testing.wait_all_tasks_blocked()
        assert lost == [] and not server.channels


@pytest.mark.parametrize("kind", [UNBOUND, OLD, ROCKETMQ])
@pytest.mark.parametrize("form", ["", "127.0.0.1:1", "10.0.0.0/8", "localhost:{port}"])
async def test_a_server_that_is_not_named_gets_no_signature_of_rocketmq(kind: str, form: str) -> None:
    """A stranger's server says that it does not know the challenge, to use the signature for other requests."""
    requests: list[Command] = []

    def take(channel: Channel, request: Command) -> Command:
        requests.append(request)
        return request.respond()

    async with serve(made(kind, dict.fromkeys(CODES, take))) as served:
        who = replace(WHO, plain_signature_addresses=form.format(port=served.addr.rpartition(":")[2]))
        async with open_client(connect=served.connect, credentials=who) as client:
            with pytest.raises(PlainSignatureOnly, match=f"add its address to .* {served.addr}"):
                await client.invoke(served.addr, Command(1))
            with pytest.raises(ConnectFailed):
                client.push(served.addr, Command(3, flag=FLAG_ONEWAY))
            with pytest.raises(PlainSignatureOnly):
                await client.oneway(served.addr, Command(2))
        assert requests == []


@pytest.mark.parametrize("form", ["{addr}", "10.0.0.0/8; {addr}", "127.0.0.0/8", "*"])
async def test_a_server_that_is_named_gets_the_signature_of_rocketmq(form: str) -> None:
    seen: list[Command] = []

    def take(channel: Channel, request: Command) -> Command:
        seen.append(request)
        return request.respond()

    async with serve(made(ROCKETMQ, {1: take})) as served:
        who = replace(WHO, plain_signature_addresses=form.format(addr=served.addr))
        async with open_client(connect=served.connect, credentials=who) as client:
            await client.invoke(served.addr, Command(1))
        assert is_signed_with(seen[0], "secret-1")


FORWARDS, STRIPS, LIES = "forwards the address", "asks as an old client", "asks for its victim, and says so to nobody"


class Relay:
    """A fake server, which forwards the challenge of a real one, and then what the client signs with it."""

    def __init__(self, victim: Channel, victim_addr: str, way: str) -> None:
        self.server = Server(dict.fromkeys((CHALLENGE.code, 1), self._take))
        self._victim, self._victim_addr, self._way = victim, victim_addr, way

    def _take(self, _: Channel, request: Command) -> Command:
        raise RunInTask(self._forward)

    async def _forward(self, _: Channel, request: Command) -> Command:
        ext = dict(request.ext or {})
        asked = ext.get(SERVER_FIELD)
        if request.code == CHALLENGE.code and self._way != FORWARDS:
            ext.pop(SERVER_FIELD)
            if self._way == LIES:
                ext[SERVER_FIELD] = self._victim_addr
        found = await self._victim.invoke(Command(request.code, ext, request.body, codec=request.codec), 1_000)
        answered = dict(found.ext or {})
        if self._way == LIES and SERVER_FIELD in answered:
            answered[SERVER_FIELD] = asked
        return request.respond(found.code, found.remark, answered)


async def attacked(way: str, who: Credentials) -> tuple[RemotingError | None, list[Command]]:
    """The answer that the client of ``who`` gets from a fake server, and the requests that the real server accepts."""
    error: RemotingError | None = None
    async with connected(None) as real:
        relay = Relay(await real.client.channel(real.addr, 1_000), real.addr, way)
        async with serve(relay.server, over_tcp=True) as met, open_client(credentials=who) as client:
            try:
                await client.invoke(met.addr, Command(1, {"a": "b"}))
            except RemotingError as refusal:
                error = refusal
        signatures = real.signatures
        return error, [request for request in real.requests if is_signed_with(request, "secret-1", signatures)]


async def test_signatures_for_one_server_are_refused_by_another() -> None:
    careful = replace(WHO, plain_signature_addresses="")
    error, believed = await attacked(FORWARDS, careful)
    assert "this server is not known to be reached at 127.0.0.1:" in str(error) and not believed
    error, believed = await attacked(STRIPS, careful)
    assert isinstance(error, PlainSignatureOnly) and not believed
    # The client signs, as its own address was in the answer; the signature is for that address.
    error, believed = await attacked(LIES, careful)
    assert error is None and not believed
    # Who may sign for servers of RocketMQ everywhere signs for this one, as for an old Skylark.
    error, believed = await attacked(STRIPS, WHO)
    assert error is None and len(believed) == 1


async def test_a_server_behind_nat_is_told_its_other_addresses() -> None:
    """The client signs for the address to which it has connected; the server must know it as one of its own."""
    outside = "192.0.2.1:10911"
    known: set[str] = set()
    server = Server({1: lambda channel, request: request.respond()}, reached_at=lambda addr: addr in known)

    async def connect(host: str, port: int) -> Transport:
        transport = await served.stream()
        transport.remote = f"{host}:{port}"
        return transport

    async with serve(server) as served, open_client(connect=connect, credentials=WHO) as client:
        with pytest.raises(ConnectFailed, match="reachedAtAddresses"):
            await client.invoke(outside, Command(1))
        known.add(outside)
        assert (await client.invoke(outside, Command(1))).code == ResponseCode.SUCCESS
        signatures = {channel.signatures.server for channel in server.channels if channel.signatures is not None}
    assert signatures == {outside}


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
        channel.submit(Command(NOTIFY_CONSUMER_IDS_CHANGED.code), 1_000, answered)
        return request.respond()

    async with (
        serve(Server({1: ask_back})) as served,
        open_client(
            {NOTIFY_CONSUMER_IDS_CHANGED.code: lambda channel, request: request.respond()},
            connect=served.connect,
            credentials=WHO,
        ) as client,
    ):
        await client.invoke(served.addr, Command(1))
        with trio.fail_after(DEADLINE_S):
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
