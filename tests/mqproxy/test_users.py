"""Who may call a proxy with users, and that brokers decide by the rights of the user who signed the call."""

import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
import trio
from google.protobuf import message_factory
from google.protobuf.message import Message

from skylark import Credentials, blocking
from skylark.mqcommon.errors import ConfigError
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.mqproxy.test_consumers import route_is_there
from tests.mqproxy.test_producer import Client, Got
from tests.support.proxies import Proxy, Telling, message, proxy
from tests.support.waiting import DEADLINE_S, until

ROOT = Credentials("root", "a secret of the super user")
INNER = json.dumps({"accessKey": "inner", "secretKey": "a secret of brokers"})

METHODS = wire.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name

cluster = cluster_fixture(
    scope="module",
    options={
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": "root", "password": ROOT.secret_key}),
        "innerClientAuthenticationCredentials": INNER,
        # Open transactions are asked about soon.
        "transactionTimeOut": 300,
        "transactionCheckInterval": 300,
        "transactionCheckMax": 10_000,
    },
)


# A consumer that ends waits for its last receive.
SHORT = {
    "grpc_client_consumer_min_long_polling_timeout_millis": 100,
    "grpc_client_consumer_max_long_polling_timeout_millis": 1_000,
}


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[blocking.Admin]:
    with blocking.Admin(cluster.nameserver, credentials=ROOT) as opened:
        for topic in ("orders", "salaries"):
            opened.create_topic(cluster.brokers[0].address, TopicConfig(topic, 2, 2))
            trio.run(route_is_there, cluster, topic)
        yield opened


@pytest.fixture(scope="module")
def served(cluster: Cluster, admin: blocking.Admin) -> Iterator[Proxy]:
    with proxy(
        cluster.nameserver, inner_client_authentication_credentials=INNER, user_cache_refresh_seconds=1, **SHORT
    ) as running:
        yield running


@pytest.fixture
def make_user(cluster: Cluster, admin: blocking.Admin, topic: str) -> Callable[..., Credentials]:
    """Make a user of this test's own, who may do this; returns the credentials."""

    def made(*rights: tuple[str, str]) -> Credentials:
        at = cluster.brokers[0].address
        admin.create_user(at, UserInfo(topic, "a secret of the test"))
        if rights:
            entries = [PolicyEntryInfo(resource, [action], None, "Allow") for resource, action in rights]
            admin.create_acl(at, AclInfo(f"User:{topic}", [PolicyInfo("Custom", entries)]))
        return Credentials(topic, "a secret of the test")

    return made


def signed(user: Credentials, **changes: str) -> list[tuple[str, str]]:
    """The metadata of a call that ``user`` signs."""
    time = "20261127T080000Z"
    signature = hmac.digest(user.secret_key.encode(), time.encode(), "sha1").hex().upper()
    metadata = {
        "x-mq-client-id": "test",
        "x-mq-date-time": time,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user.access_key}/region/service, SignedHeaders=x-mq-date-time,"
        f" Signature={signature}",
    }
    return [(name, value) for name, value in {**metadata, **changes}.items() if value]


class Caller:
    """Calls with the same metadata."""

    def __init__(self, channel: grpc.Channel, metadata: list[tuple[str, str]]) -> None:
        self._channel = channel
        self._metadata = metadata

    def first(self, method: str, request: Message | None = None) -> Any:
        """The first answer to any method of the service; ``request`` is empty by default. Streams stay open."""
        found = METHODS[method]
        asked, answer = (message_factory.GetMessageClass(of) for of in (found.input_type, found.output_type))
        kind = f"{'stream' if found.client_streaming else 'unary'}_{'stream' if found.server_streaming else 'unary'}"
        made = getattr(self._channel, kind)(f"/{SERVICE}/{method}", asked.SerializeToString, answer.FromString)
        given = request or asked()
        result = made(iter([given]) if found.client_streaming else given, metadata=self._metadata, timeout=30)
        return next(iter(result)) if found.server_streaming else result

    def route(self) -> wire.Status:
        """The status for a call that only the proxy answers."""
        status: wire.Status = self.first(
            "QueryRoute", wire.QueryRouteRequest(topic=wire.Resource(name="orders"))
        ).status
        return status

    def send(self, topic: str = "orders") -> wire.Status:
        """The status for a message."""
        status: wire.Status = self.first("SendMessage", wire.SendMessageRequest(messages=[message(topic)])).status
        return status

    def receive(self, group: str) -> wire.ReceiveMessageResponse:
        asked = wire.ReceiveMessageRequest(
            group=wire.Resource(name=group),
            message_queue=wire.MessageQueue(topic=wire.Resource(name="orders")),
            filter_expression=wire.FilterExpression(type=wire.TAG, expression="*"),
        )
        asked.invisible_duration.FromSeconds(20)
        asked.long_polling_timeout.FromSeconds(1)
        received: wire.ReceiveMessageResponse = self.first("ReceiveMessage", asked)
        return received


@pytest.fixture
def caller_of(served: Proxy) -> Iterator[Callable[..., Caller]]:
    """Calls that a user signs."""
    with served.channel() as channel:
        yield lambda user, **changes: Caller(channel, signed(user, **changes))


def produced(client: Client, served: Proxy, topic: str, *credentials: str) -> dict[str, Any]:
    """The result of the official producer for one message."""
    result: dict[str, Any]
    (result,) = client(
        "produce", served.address, topic=topic, messages=[{"body": "a cup of tea"}], credentials=credentials
    )
    return result


def test_the_official_producer_sends_what_its_user_may(
    client: Client, got: Got, served: Proxy, make_user: Callable[..., Credentials]
) -> None:
    user = make_user(("Topic:orders", "Pub"))
    assert produced(client, served, "orders", user.access_key, user.secret_key)["id"]
    refused = produced(client, served, "salaries", user.access_key, user.secret_key)["error"]
    assert "has no permission to access Topic:salaries" in refused
    got("Producer: no right", refused)
    # The Python client says why in its log only.
    wrong = [(user.access_key, "another secret"), ("nobody", user.secret_key), ()]
    errors = [produced(client, served, "orders", *credentials)["error"] for credentials in wrong]
    for what, error in zip(("wrong secret", "unknown user", "no credentials"), errors, strict=True):
        got(f"Producer: {what}", error)


def test_the_official_consumers_receive_what_their_user_may(
    client: Client,
    got: Got,
    cluster: Cluster,
    admin: blocking.Admin,
    served: Proxy,
    topic: str,
    make_user: Callable[..., Credentials],
) -> None:
    at = cluster.brokers[0].address
    user = make_user((f"Topic:{topic}", "Pub"), (f"Topic:{topic}", "Sub"), (f"Group:{topic}-*", "Sub"))
    admin.create_topic(at, TopicConfig(topic, 2, 2))
    trio.run(route_is_there, cluster, topic)
    own = {"topic": topic, "credentials": (user.access_key, user.secret_key)}
    for kind in ("receive", "push"):
        group = f"{topic}-{kind}"
        # A group that begins to pop begins at the end of the topic.
        with blocking.SimpleConsumer(
            cluster.nameserver, group=group, subscriptions={topic: "*"}, credentials=ROOT
        ) as consumer:
            consumer.receive(wait_ms=0)
    client("produce", served.address, messages=[{"body": "a cup of tea"}], **own)
    for kind in ("receive", "push"):
        (received,) = client(kind, served.address, group=f"{topic}-{kind}", count=1, **own)
        assert received["body"] == "a cup of tea"
        got(f"Consumer with credentials: {kind}", received["body"])


@pytest.mark.parametrize("method", METHODS)
def test_no_method_is_served_without_a_signature(served: Proxy, method: str) -> None:
    with served.channel() as channel:
        try:
            status = Caller(channel, [("x-mq-client-id", "test")]).first(method).status
        except grpc.RpcError as error:
            # It is not in the table of the service.
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
        else:
            assert status == wire.Status(code=wire.UNAUTHORIZED, message="authentication header is null")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x-mq-date-time": ""}, "datetime is null"),
        ({"authorization": "MQv2-HMAC-SHA1"}, "authentication header is incorrect"),
        ({"authorization": "Basic Credential=root"}, "authentication header is incorrect"),
        ({"authorization": "MQv2-HMAC-SHA1 root"}, "authentication keyValues length is incorrect, actual length=1"),
        ({"authorization": f"MQv2-HMAC-SHA1 Signature={'0' * 40}"}, "username cannot be null."),
        ({"authorization": "MQv2-HMAC-SHA1 Credential=root, Signature=x"}, "check signature failed."),
        ({"authorization": f"MQv2-HMAC-SHA1 Credential=root, Signature={'0' * 40}"}, "check signature failed."),
        ({"authorization": f"MQv2-HMAC-SHA1 Credential=nobody, Signature={'0' * 40}"}, "User:nobody is not found."),
        ({"x-mq-date-time": "20261127T080001Z"}, "check signature failed."),
    ],
)
def test_a_wrong_signature_is_refused_with_rocketmqs_text(
    caller_of: Callable[..., Caller], changes: dict[str, str], text: str
) -> None:
    assert caller_of(ROOT).route().code == wire.OK
    assert caller_of(ROOT, **changes).route() == wire.Status(code=wire.UNAUTHORIZED, message=text)


def test_a_transaction_is_ended_with_the_rights_of_the_caller(
    admin: blocking.Admin, cluster: Cluster, caller_of: Callable[..., Caller], make_user: Callable[..., Credentials]
) -> None:
    attributes = {"+message.type": "TRANSACTION"}
    admin.create_topic(cluster.brokers[0].address, TopicConfig("bills", 1, 1, attributes=attributes))
    trio.run(route_is_there, cluster, "bills")
    half = message("bills", message_type=wire.TRANSACTION)
    root, user = caller_of(ROOT), caller_of(make_user(("Topic:orders", "Pub")))
    begin = wire.SendMessageRequest(messages=[half])
    assert user.first("SendMessage", begin).status.code == wire.FORBIDDEN
    (entry,) = root.first("SendMessage", begin).entries
    end = wire.EndTransactionRequest(
        topic=wire.Resource(name="bills"), message_id=entry.message_id, transaction_id=entry.transaction_id,
        resolution=wire.ROLLBACK, source=wire.SOURCE_CLIENT,
    )  # fmt: skip
    assert user.first("EndTransaction", end).status.code == wire.FORBIDDEN
    # Naming another topic does not help: the half message decides.
    end.topic.name = "orders"
    assert user.first("EndTransaction", end).status.code == wire.INVALID_TRANSACTION_ID
    end.topic.name = "bills"
    assert root.first("EndTransaction", end).status.code == wire.OK


def test_only_producers_that_may_send_are_asked_about_a_transaction(
    admin: blocking.Admin,
    cluster: Cluster,
    served: Proxy,
    caller_of: Callable[..., Caller],
    make_user: Callable[..., Credentials],
) -> None:
    """A member by its settings alone, which need no right, is not shown others' half messages."""
    attributes = {"+message.type": "TRANSACTION"}
    admin.create_topic(cluster.brokers[0].address, TopicConfig("secrets", 1, 1, attributes=attributes))
    trio.run(route_is_there, cluster, "secrets")
    settings = wire.Settings(
        client_type=wire.PRODUCER, publishing=wire.Publishing(topics=[wire.Resource(name="secrets")])
    )
    nosy = [each for each in signed(make_user(("Topic:orders", "Pub"))) if each[0] != "x-mq-client-id"]
    owner = [each for each in signed(ROOT) if each[0] != "x-mq-client-id"]
    shown: list[wire.TelemetryCommand] = []
    with served.channel() as channel:
        spy = Telling(channel, "the-spy", settings, nosy)

        def look() -> None:
            with suppress(grpc.RpcError):
                while True:
                    shown.append(spy.read())

        looking = threading.Thread(target=look)
        looking.start()
        half = message("secrets", b"a secret", message_type=wire.TRANSACTION)
        assert caller_of(ROOT).first("SendMessage", wire.SendMessageRequest(messages=[half])).status.code == wire.OK
        # The broker asks somebody each 300 ms; the owner's second question comes after the spy would have had one.
        producer = Telling(channel, "the-owner", settings, owner)
        for _ in range(3):
            assert producer.read().recover_orphaned_transaction_command.message.body == b"a secret"
        producer.close()
        spy.close()
        looking.join(DEADLINE_S)
    assert not looking.is_alive() and not shown


def test_pulls_and_offsets_need_the_right_to_receive(
    caller_of: Callable[..., Caller], make_user: Callable[..., Credentials]
) -> None:
    caller = caller_of(make_user(("Topic:orders", "Pub")))
    queue = wire.MessageQueue(topic=wire.Resource(name="orders"), broker=wire.Broker(name="broker-a"))
    names: dict[str, Any] = {"group": wire.Resource(name="kitchen"), "message_queue": queue}
    for method, request in (
        ("PullMessage", wire.PullMessageRequest(**names)),
        ("GetOffset", wire.GetOffsetRequest(**names)),
        ("UpdateOffset", wire.UpdateOffsetRequest(**names)),
        ("QueryOffset", wire.QueryOffsetRequest(message_queue=queue)),
    ):
        assert caller.first(method, request).status.code == wire.FORBIDDEN, method


def test_a_call_without_a_right_is_forbidden(
    caller_of: Callable[..., Caller], make_user: Callable[..., Credentials]
) -> None:
    caller = caller_of(make_user(("Topic:orders", "Pub"), ("Group:kitchen", "Sub")))
    assert caller.send().code == wire.OK
    assert caller.send("salaries").code == wire.FORBIDDEN
    status = caller.receive("kitchen").status
    assert (status.code, "Topic:orders" in status.message) == (wire.FORBIDDEN, True), status


def test_a_receipt_of_another_group_is_of_no_use(
    caller_of: Callable[..., Caller], make_user: Callable[..., Credentials]
) -> None:
    thief = caller_of(make_user(("Topic:orders", "Sub"), ("Group:thieves", "Sub")))
    handle = f"0 {2**61} 1000 0 0 broker-a 0 0 0"
    request = wire.AckMessageRequest(
        topic=wire.Resource(name="orders"),
        group=wire.Resource(name="kitchen"),
        entries=[wire.AckMessageEntry(message_id="m", receipt_handle=handle)],
    )
    status = thief.first("AckMessage", request).status
    assert (status.code, "Group:kitchen" in status.message) == (wire.FORBIDDEN, True), status


def test_clients_of_two_users_do_not_know_each_other(
    caller_of: Callable[..., Caller], make_user: Callable[..., Credentials]
) -> None:
    settings = wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing())
    beat, ending = wire.HeartbeatRequest(client_type=wire.PRODUCER), wire.NotifyClientTerminationRequest()
    owner, other = caller_of(ROOT), caller_of(make_user())
    assert owner.first("Telemetry", wire.TelemetryCommand(settings=settings)).status.code == wire.OK
    # Both call themselves by the same client id.
    assert other.first("NotifyClientTermination", ending).status.code == wire.UNRECOGNIZED_CLIENT_TYPE
    assert owner.first("Heartbeat", beat).status.code == wire.OK
    assert other.first("Heartbeat", beat).status.code == wire.UNRECOGNIZED_CLIENT_TYPE


def test_a_changed_user_counts_while_the_proxy_runs(
    cluster: Cluster, admin: blocking.Admin, caller_of: Callable[..., Caller], make_user: Callable[..., Credentials]
) -> None:
    at = cluster.brokers[0].address
    unmade = caller_of(Credentials("test_a_changed_user_counts_while_the_proxy_runs", "a secret of the test"))
    assert unmade.route().code == wire.UNAUTHORIZED
    user = make_user(("Topic:orders", "Pub"))
    caller = caller_of(user)
    trio.run(until, lambda: caller.send().code == wire.OK, "a new user is let in")

    changed = Credentials(user.access_key, "a new secret")
    admin.update_user(at, UserInfo(user.access_key, changed.secret_key))
    trio.run(until, lambda: caller_of(changed).send().code == wire.OK, "a new password counts")
    assert caller.route().message == "check signature failed."

    caller = caller_of(changed)
    admin.update_user(at, UserInfo(user.access_key, user_status="disable"))
    # Brokers refuse at once what the proxy still lets through.
    assert caller.send().code in (wire.FORBIDDEN, wire.UNAUTHORIZED)
    trio.run(until, lambda: "is disabled" in caller.route().message, "a disabled user is refused")
    admin.update_user(at, UserInfo(user.access_key, user_status="enable"))
    trio.run(until, lambda: caller.send().code == wire.OK, "an enabled user is let in")
    admin.delete_user(at, user.access_key)
    assert caller.send().code in (wire.FORBIDDEN, wire.UNAUTHORIZED)
    trio.run(until, lambda: "is not found" in caller.route().message, "a deleted user is refused")


def test_the_stream_of_a_deleted_user_ends(
    cluster: Cluster, admin: blocking.Admin, served: Proxy, make_user: Callable[..., Credentials]
) -> None:
    user = make_user()
    settings = wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing())
    is_over = threading.Event()

    def commands() -> Iterator[wire.TelemetryCommand]:
        yield wire.TelemetryCommand(settings=settings)
        is_over.wait(DEADLINE_S)

    with served.channel() as channel:
        stream = channel.stream_stream(
            f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
        )(commands(), metadata=signed(user), timeout=60)
        assert next(stream).status.code == wire.OK
        admin.delete_user(cluster.brokers[0].address, user.access_key)
        (last,) = stream
        assert last.status.code == wire.UNAUTHORIZED
        is_over.set()


def test_inner_credentials_switch_authentication_on_unless_it_is_off_explicitly(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    inner: dict[str, Any] = {"inner_client_authentication_credentials": INNER}
    assert ProxyOptions(**inner).is_authenticating
    assert not ProxyOptions().is_authenticating
    with pytest.raises(ConfigError, match="set innerClientAuthenticationCredentials"):
        ProxyOptions(authentication_enabled="true")
    with proxy(cluster.nameserver, authentication_enabled="false", **inner) as running, running.channel() as channel:
        assert Caller(channel, [("x-mq-client-id", "test")]).send().code == wire.OK
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "skylark.mqproxy.server"]
    assert warning.startswith("authenticationEnabled=false") and "a secret" not in warning


def test_inner_credentials_without_the_right_to_read_secrets_are_named_in_the_log(
    cluster: Cluster, make_user: Callable[..., Credentials], caplog: pytest.LogCaptureFixture
) -> None:
    user = make_user(("Cluster:DefaultCluster", "Get"))
    inner = json.dumps({"accessKey": user.access_key, "secretKey": user.secret_key})
    with (
        proxy(cluster.nameserver, inner_client_authentication_credentials=inner) as running,
        running.channel() as channel,
    ):
        assert Caller(channel, signed(ROOT)).route().code == wire.INTERNAL_SERVER_ERROR
    assert "make it a super user" in caplog.text
    assert user.secret_key not in caplog.text and ROOT.secret_key not in caplog.text
