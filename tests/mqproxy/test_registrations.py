"""Which brokers are told about clients of the proxy, and what becomes of refusals."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from skylark.mqproxy.clients import Clients
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.registrations import AT_ONCE, Questions, RegistrationRequests
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.proxied import PROXY_HEART_BEAT, ProxiedClient, ProxyHeartbeatData
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving

CODE = PROXY_HEART_BEAT.code


@asynccontextmanager
async def registrations(**topics: FakeBroker) -> AsyncIterator[RegistrationRequests]:
    """Registrations with brokers that have one topic each."""
    async with AsyncExitStack() as stack:
        namesrv = FakeNamesrv()
        await stack.enter_async_context(serving(namesrv))
        for topic, broker in topics.items():
            broker.own_codes = (CODE,)
            await stack.enter_async_context(serving(broker))
            namesrv.add(topic, broker)
        questions = Questions(Clients(ProxyOptions()))
        yield await stack.enter_async_context(RegistrationRequests(namesrv.addr, questions=questions))


def told(broker: FakeBroker) -> list[tuple[list[str], list[str]]]:
    """(clients, those that have left) of each request so far."""
    bodies = [decode_body(ProxyHeartbeatData, request.body, request.codec) for request in broker.asked(CODE)]
    return [([client.client_id for client in body.clients], body.left) for body in bodies]


def taking() -> FakeBroker:
    broker = FakeBroker()
    broker.on(CODE, lambda request: {})
    return broker


def refusing(name: str) -> FakeBroker:
    """A broker at which this client has no right."""
    broker = FakeBroker()

    def answer(request: Command) -> Command:
        body = decode_body(ProxyHeartbeatData, request.body, request.codec)
        is_forbidden = any(client.client_id == name for client in body.clients)
        return request.respond(16, "no permission") if is_forbidden else request.respond()

    broker.on(CODE, answer)
    return broker


async def test_the_masters_of_its_topics_are_told_about_a_client() -> None:
    tea, milk = taking(), taking()
    milk.name = "broker-b"
    ada, bob = ProxiedClient("ada"), ProxiedClient("bob")
    async with registrations(tea=tea, milk=milk) as brokers:
        await brokers.tell([(ada, ["tea", "milk"]), (bob, ["milk", "nowhere"])], are_all=True)
        assert (told(tea), told(milk)) == ([(["ada"], [])], [(["ada", "bob"], [])])
        await brokers.leave("bob")
        assert (told(tea)[1:], told(milk)[1:]) == ([], [([], ["bob"])])
        # Of those who are there, ada has no topic at the first broker any more.
        await brokers.tell([(ada, ["milk"])], are_all=True)
        assert (told(tea)[1:], told(milk)[2:]) == ([([], ["ada"])], [(["ada"], [])])
        await brokers.tell([(bob, ["tea"])], are_all=False)
        assert (told(tea)[2:], told(milk)[3:]) == ([(["bob"], [])], [])


async def test_many_clients_are_told_in_parts() -> None:
    tea = taking()
    many = [ProxiedClient(f"client-{number}") for number in range(AT_ONCE + 1)]
    async with registrations(tea=tea) as brokers:
        await brokers.tell([(client, ["tea"]) for client in many], are_all=True)
        await brokers.tell([], are_all=True)
    assert [(len(clients), len(left)) for clients, left in told(tea)] == [
        (AT_ONCE, 0), (1, 0), (0, AT_ONCE), (0, 1),
    ]  # fmt: skip


async def test_a_broker_that_does_not_know_the_request_is_not_asked_each_time() -> None:
    tea = FakeBroker()
    async with registrations(tea=tea) as brokers:
        for _ in range(3):
            await brokers.tell([(ProxiedClient("ada"), ["tea"])], are_all=True)
    assert len(tea.asked(CODE)) == 1


async def test_a_client_without_a_right_does_not_hide_others() -> None:
    tea = refusing("eve")
    names = ("ada", "eve", "bob")
    async with registrations(tea=tea) as brokers:
        await brokers.tell([(ProxiedClient(name), ["tea"]) for name in names], are_all=True)
        assert told(tea)[1:] == [(["ada"], []), (["eve"], []), (["bob"], [])]
        await brokers.tell([], are_all=True)
    # What was refused need not leave.
    assert told(tea)[4:] == [([], ["ada", "bob"])]


async def test_a_client_without_a_right_does_not_keep_one_that_left() -> None:
    tea = refusing("eve")
    async with registrations(tea=tea) as brokers:
        await brokers.tell([(ProxiedClient("ada"), ["tea"])], are_all=True)
        await brokers.tell([(ProxiedClient("eve"), ["tea"])], are_all=True)
    assert told(tea)[2:] == [([], ["ada"]), (["eve"], [])]


async def test_clients_that_do_not_fit_into_one_frame_are_told_one_by_one() -> None:
    tea = taking()
    large = [ProxiedClient(name, producer_groups=["x" * 9_000_000]) for name in ("ada", "bob")]
    async with registrations(tea=tea) as brokers:
        await brokers.tell([(client, ["tea"]) for client in large], are_all=True)
    assert told(tea) == [(["ada"], []), (["bob"], [])]
