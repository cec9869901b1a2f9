"""A stranger's servers beside a cluster with users: nothing signed that could be used elsewhere, and nothing learned.

NameServers are open, as by default, so that anybody registers a broker. Console, proxy, mqadmin and programs meet it;
brokers are given a fake NameServer or a fake Controller.
"""

import hmac
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import trio
from click.testing import CliRunner

from skylark import Admin, Credentials, Message, Producer, blocking
from skylark.mqadmin.cli import mqadmin
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.auth import UserInfo
from skylark.sdk.testing import Cluster
from tests.broker.running import running
from tests.intruder.fake_servers import CHALLENGE, LIES, REFUSES, WAYS, FakeServer, Frame, ask, fake_server, request
from tests.mqconsole.consoles import browser, console
from tests.namesrv.peer import serve
from tests.support.proxies import proxy
from tests.support.waiting import DEADLINE_S, until

SECRETS = {name: f"the-secret-of-{name}" for name in ("root", "inner", "shop")}
ROOT, SHOP = (Credentials(name, SECRETS[name], plain_signature_addresses="") for name in ("root", "shop"))
INNER = json.dumps({"accessKey": "inner", "secretKey": SECRETS["inner"]})
GUARDED = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": SECRETS["root"]}),
    "innerClientAuthenticationCredentials": INNER,
}
#: Requests that tell passwords or options, or change users, topics and the broker.
WORTH = (26, 28, 306, 316, 329, 3001, 3002, 3004, 3005, 3010, 7101, 17, 215, 25)
#: Text that would be the body of a request which makes a user.
CHOSEN = ('stranger1{"password":"known","userType":"Super"}', '{"userType":"Super","password":"known"}')


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, options=GUARDED) as made:
        made.create_topic("orders")
        with blocking.Admin(made.nameserver, credentials=ROOT) as admin:
            admin.create_user(made.brokers[0].address, UserInfo("shop", SECRETS["shop"], "Super"))
        yield made


@pytest.fixture(params=WAYS)
def fake(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[FakeServer]:
    """A registered fake broker, that knows where a real one is."""
    with fake_server(request.param, cluster.brokers[0].address) as made:
        assert made.register(cluster.nameserver).code == 0
        yield made


async def nothing_was_gained(fake: FakeServer, cluster: Cluster) -> None:
    """The real server refuses what the fake server got, unchanged and as any other request; it learned nothing."""
    victim = cluster.brokers[0].address
    # Signed, if at all, for the fake server's own address.
    captured = list(fake.signed)
    for one in captured:
        for data in (one.raw, *(request(code, one.ext, one.body) for code in WORTH)):
            (answer,) = await trio.to_thread.run_sync(ask, victim, data)
            assert answer.code != 0 and answer.is_refusal, (one, answer)
            assert_tells_nothing(answer)
    for answer in list(fake.learned):
        assert answer.code != 0 and answer.is_refusal, answer
        assert_tells_nothing(answer)
    async with Admin(cluster.nameserver, credentials=ROOT) as admin:
        assert {user.username for user in await admin.list_users(victim)} == {"root", "inner", "shop"}


def assert_tells_nothing(answer: Frame) -> None:
    assert not [secret for secret in SECRETS.values() if secret.encode() in answer.raw]


def has_text(fake: FakeServer, *texts: str) -> bool:
    return any(text.encode() in one.raw for one in fake.frames for text in texts)


async def test_a_console_gives_nothing_away(fake: FakeServer, cluster: Cluster) -> None:
    async with console(cluster.nameserver, ROOT, login=True) as address, browser(address) as visitor:
        await until(lambda: fake.challenges >= 1, "the console has met the fake broker")
        for name in CHOSEN:
            answer = await visitor.log_in(name, "a-secret")
            assert answer.status_code == 401
        assert (await visitor.log_in("shop", SECRETS["shop"])).status_code in (303, 401)
    assert not has_text(fake, *CHOSEN)
    await nothing_was_gained(fake, cluster)


async def test_a_proxy_gives_nothing_away(fake: FakeServer, cluster: Cluster) -> None:
    inner = {"inner_client_authentication_credentials": INNER}
    with proxy(cluster.nameserver, **inner) as served, served.channel() as channel:
        for name, secret in (*((text, "a-secret") for text in CHOSEN), ("shop", SECRETS["shop"])):
            await trio.to_thread.run_sync(_ask_for_route, channel, name, secret)
        await until(lambda: fake.challenges >= 1, "the proxy has met the fake broker")
    assert not has_text(fake, *CHOSEN)
    await nothing_was_gained(fake, cluster)


def _ask_for_route(channel: grpc.Channel, name: str, secret: str) -> None:
    time = "20261127T080000Z"
    digest = hmac.digest(secret.encode(), time.encode(), "sha1").hex()
    authorization = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={digest}"
    asked = wire.QueryRouteRequest(topic=wire.Resource(name="lure"))
    made = channel.unary_unary(
        f"/{SERVICE}/QueryRoute", type(asked).SerializeToString, wire.QueryRouteResponse.FromString
    )
    metadata = [("x-mq-client-id", "test"), ("x-mq-date-time", time), ("authorization", authorization)]
    answer = made(asked, metadata=metadata, timeout=DEADLINE_S)
    assert name == "shop" or answer.status.code == wire.UNAUTHORIZED


async def test_mqadmin_gives_nothing_away(fake: FakeServer, cluster: Cluster) -> None:
    env = {"ROCKETMQ_ACCESS_KEY": "root", "ROCKETMQ_SECRET_KEY": SECRETS["root"], "NAMESRV_ADDR": cluster.nameserver}
    for arguments in (
        ("brokerStatus", "-b", fake.addr), ("listUser", "-c", "DefaultCluster"),
        ("getUser", "-b", fake.addr, "-u", "shop"),
        ("copyUser", "-f", fake.addr, "-t", cluster.brokers[0].address), ("doctor",),
        ("createUser", "-b", fake.addr, "-u", CHOSEN[0], "-p", "known"),
    ):  # fmt: skip
        await trio.to_thread.run_sync(lambda arguments=arguments: CliRunner().invoke(mqadmin, list(arguments), env=env))
    assert fake.challenges >= 1 and not has_text(fake, *CHOSEN)
    await nothing_was_gained(fake, cluster)


async def test_a_program_gives_nothing_away(fake: FakeServer, cluster: Cluster) -> None:
    async with (
        Producer(cluster.nameserver, credentials=SHOP, send_timeout_ms=60_000, start_timeout_ms=None) as producer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(producer.send, Message("lure", b"x"))
        await until(lambda: fake.challenges >= 1, "the program has met the fake broker")
        if fake.way == LIES:
            await until(lambda: bool(fake.learned), "the send was forwarded")
        nursery.cancel_scope.cancel()
    await nothing_was_gained(fake, cluster)


async def test_what_a_program_signs_for_every_server_is_of_no_use_to_administer(cluster: Cluster) -> None:
    """By default programs sign as RocketMQ's clients do, for servers that know no other way."""
    everywhere = Credentials("shop", SECRETS["shop"])
    victim = cluster.brokers[0].address
    sent = {"msgId": "7F000001" + "0" * 24, "queueId": "0", "queueOffset": "0"}
    with fake_server(REFUSES, answering=lambda asked: (0, sent, b"")) as fake:
        fake.register(cluster.nameserver)
        async with Producer(cluster.nameserver, credentials=everywhere, retries=0) as producer:
            await producer.send(Message("lure", b"x"))
        sends = [one for one in fake.signed if one.code in (310, 320)]
        assert sends, "it was signed as RocketMQ signs"
        for one in fake.signed:
            for code in WORTH:
                (answer,) = await trio.to_thread.run_sync(ask, victim, request(code, one.ext, one.body))
                assert answer.code != 0 and answer.is_refusal, answer
                assert_tells_nothing(answer)


@pytest.mark.parametrize("way", WAYS)
async def test_brokers_give_nothing_away_to_a_fake_nameserver(way: str, cluster: Cluster) -> None:
    with fake_server(way, cluster.brokers[0].address) as fake:
        options = {"authentication_enabled": True, "inner_client_authentication_credentials": INNER}
        async with running(namesrv_addr=fake.addr, **options):
            await until(lambda: fake.challenges >= 1, "the broker wants to register")
            if way == LIES:
                await until(lambda: bool(fake.learned), "the registration was forwarded")
        await nothing_was_gained(fake, cluster)
        # Administrators and programs that are given it as their NameServer.
        env = {"ROCKETMQ_ACCESS_KEY": "root", "ROCKETMQ_SECRET_KEY": SECRETS["root"], "NAMESRV_ADDR": fake.addr}
        await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, ["clusterList"], env=env))
        await nothing_was_gained(fake, cluster)


@pytest.mark.parametrize("way", WAYS)
async def test_brokers_give_nothing_away_to_a_fake_controller(way: str, cluster: Cluster) -> None:
    with fake_server(way, cluster.brokers[0].address) as fake:
        options = {
            "authentication_enabled": True, "inner_client_authentication_credentials": INNER,
            "enable_controller_mode": True, "controller_addr": fake.addr, "broker_id": -1,
        }  # fmt: skip
        async with running(**options):
            await until(lambda: fake.challenges >= 1, "the broker has met the Controller")
            if way == LIES:
                await until(lambda: bool(fake.learned), "its question was forwarded")
        await nothing_was_gained(fake, cluster)


async def test_a_guarded_nameserver_takes_no_fake_broker(tmp_path: Any) -> None:
    async with trio.open_nursery() as nursery:
        served = await serve(nursery, tmp_path, registration_users=f"[{INNER}]")
        with fake_server(REFUSES) as fake:
            for name, broker_id in (("broker-fake", 0), ("broker-a", 0), ("broker-a", 1)):
                answer = await trio.to_thread.run_sync(fake.register, served.address, name, "t", broker_id)
                assert answer.code == 16 and "has no signature" in answer.header["remark"]
            # Relatives of 103: unregister, heartbeats, topics without their brokers, rights to write.
            ext = {"brokerName": "broker-a", "brokerAddr": fake.addr, "clusterName": "c", "topic": "t"}
            for code in (104, 322, 904, 217, 205, 327, 216, 100, 102, 318, 319):
                (answer,) = await trio.to_thread.run_sync(ask, served.address, request(code, ext))
                assert answer.code == 16, (code, answer.header)
        assert served.namesrv.state.routes.cluster_info().broker_addr_table == {}
        nursery.cancel_scope.cancel()


async def test_a_challenge_is_given_for_the_servers_own_address_only(cluster: Cluster) -> None:
    victim = cluster.brokers[0].address
    others = dict.fromkeys(("127.0.0.1:1", "10.0.0.1:10911", "x"), False)
    for meant, is_given in {victim: True, None: True, **others}.items():
        asked = request(CHALLENGE, {} if meant is None else {"server": meant})
        (answer,) = await trio.to_thread.run_sync(ask, victim, asked)
        assert ("challenge" in answer.ext) is is_given, meant
        assert answer.ext.get("server") == (meant if is_given else None)
