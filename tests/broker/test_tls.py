"""A set of brokers and a NameServer that speak nothing but TLS, with each other and with clients."""

from pathlib import Path

import pytest

from skylark import Admin, Producer, PullConsumer, Tls
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import ConfigError, RemotingError, UserError
from skylark.mqcommon.message.message import Message
from skylark.remoting.net.client import open_client
from skylark.remoting.net.tls.options import daemon_tls
from skylark.remoting.protocol.requests.raft import RAFT_STATUS, RaftStatusRequestHeader
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.replication.dledger.groups import NAME, started
from tests.broker.replication.sets import SLAVE, broker, namesrv
from tests.support.certificates import Authority
from tests.support.waiting import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def conf(tmp_path: Path, authority: Authority) -> str:
    """A tls.properties: certificates of servers and of clients are required."""
    cert, key = authority.sign("node")
    path = tmp_path / "tls.properties"
    path.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={cert}\ntls.server.keyPath={key}\n"
        f"tls.server.need.client.auth=require\ntls.server.trustCertPath={authority.ca_file}\n"
        f"tls.enable=true\ntls.client.certPath={cert}\ntls.client.keyPath={key}\n"
        f"tls.client.trustCertPath={authority.ca_file}\n"
    )
    return str(path)


async def test_a_set_that_speaks_tls_only(tmp_path: Path, authority: Authority) -> None:
    file = conf(tmp_path, authority)
    tls = Tls(authority.ca_file, *authority.sign("client"))
    async with (
        namesrv(tls_config_file=file) as addr,
        broker(namesrv_addr=addr, tls_config_file=file, broker_role="SYNC_MASTER", total_replicas=2) as one,
        broker(namesrv_addr=addr, tls_config_file=file, **SLAVE) as two,
    ):
        async with Admin(addr, tls=tls) as admin:

            async def is_registered() -> bool:
                info = await admin.cluster_info()
                return any(len(each.broker_addrs) == 2 for each in info.broker_addr_table.values())

            await until(is_registered, "master and slave are registered")
            await admin.create_topic(one.addr, TopicConfig("orders", 4, 4))

            async def is_known() -> bool:
                return "orders" in await admin.topic_list()

            await until(is_known, "the NameServer knows the topic")
        async with Producer(addr, tls=tls) as producer, PullConsumer(addr, tls=tls) as consumer:
            # SYNC_MASTER: the slave has it, too.
            result = await producer.send(Message("orders", b"x" * 10_000))
            found = await consumer.pull(result.queue, result.queue_offset)
            assert [message.body for message in found.messages] == [b"x" * 10_000]
        assert two.log_end == one.log_end
        for stranger in (None, Tls(authority.ca_file)):
            async with Admin(addr, tls=stranger, timeout_ms=5_000) as admin:
                with pytest.raises(RemotingError):
                    await admin.broker_config(one.addr)


async def test_a_dledger_group_that_speaks_tls_only(tmp_path: Path, authority: Authority) -> None:
    file = conf(tmp_path, authority)
    tls = Tls(authority.ca_file, *authority.sign("client"))
    async with namesrv(tls_config_file=file) as addr, started(namesrv_addr=addr, tls_config_file=file) as made:
        members = list(made.members.values())
        await until(lambda: any(each.broker.role.now.is_master for each in members), "there is a leader")
        (leader,) = [each for each in members if each.broker.role.now.is_master]
        async with Admin(addr, tls=tls) as admin:
            await admin.create_topic(leader.addr, TopicConfig("orders", 4, 4))

            async def is_known() -> bool:
                return "orders" in await admin.topic_list()

            await until(is_known, "the NameServer knows the topic")
        async with Producer(addr, tls=tls) as producer:
            await producer.send(Message("orders", b"x" * 10_000))
        await made.until_equal()
        async with open_client() as stranger:
            request = RAFT_STATUS.command(RaftStatusRequestHeader(NAME))
            with pytest.raises(RemotingError):
                await stranger.invoke(f"127.0.0.1:{made.port('n0')}", request, 2_000)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tls.server.certPath=absent.crt\ntls.server.keyPath=absent.key", "absent.crt"),
        ("tls.server.mode=maybe", "tls.server.mode must be one of"),
    ],
)
def test_a_wrong_file_is_told_at_the_start(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(text)
    with pytest.raises(UserError, match=error):
        daemon_tls(BrokerOptions(tls_config_file=str(path)))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tlsConfigFile: .* cannot be read"):
        daemon_tls(BrokerOptions(tls_config_file=str(tmp_path / "absent")))


def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.server.keyPassword=a secret")
    path.chmod(0o644)
    with pytest.raises(UserError, match="600") as caught:
        daemon_tls(BrokerOptions(tls_config_file=str(path)))
    assert "a secret" not in str(caught.value)
    path.chmod(0o600)
    assert daemon_tls(BrokerOptions(tls_config_file=str(path))).server is None


def test_the_usual_file_is_used_if_it_is_there() -> None:
    assert daemon_tls(BrokerOptions(), lambda path: False).server is None
    with pytest.raises(ConfigError, match=r"/etc/rocketmq/tls.properties cannot be read"):
        daemon_tls(BrokerOptions(), lambda path: True)
