"""broker.conf: RocketMQ's keys, what is refused, what is passed over with a warning."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylark.broker.cli import main
from skylark.broker.options import OVERHEAD_BYTES, BrokerOptions, check_file_size
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.message.layout import BLANK_BYTES, MAX_PROPERTIES
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqcommon.names import RETRY_TOPIC_MAX_LENGTH
from skylark.mqcommon.options.conf_file import load_conf, to_properties
from skylark.mqcommon.options.fields import options_of
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from tests.broker.running import running

# keys that getBrokerConfig of Apache RocketMQ 4.9.8 and 5.3.3 showed
GOLDEN = Path(__file__).parents[1] / "golden" / "broker_config_keys.txt"

# What official installations have in their broker.conf (distribution 5.x, conf/2m-noslave)
CONF = """
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
storePathRootDir=/data/store
storePathCommitLog=/data/store/commitlog
mappedFileSizeCommitLog=1073741824
autoCreateTopicEnable=true
sendMessageThreadPoolNums=16
"""


def load(tmp_path: Path, text: str, warnings: list[str] | None = None) -> BrokerOptions:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return load_conf(BrokerOptions, path, environ={}, warnings=warnings)


def test_a_users_conf_file_loads(tmp_path: Path) -> None:
    warnings: list[str] = []
    options = load(tmp_path, CONF, warnings)
    assert options.file_reserved_time == 48
    assert options.namesrv_addrs == ["127.0.0.1:9876", "127.0.0.1:9877"]
    assert [re.sub(r".*conf:\d+: (\w+):.*", r"\1", warning) for warning in warnings] == [
        "sendMessageThreadPoolNums",
    ]


def test_defaults_are_rocketmqs() -> None:
    options = BrokerOptions()
    assert options.listen_port == 10911
    assert options.broker_permission == 6
    assert options.flush_interval_commit_log == 500
    assert options.mapped_file_size_commit_log == 1 << 30
    assert options.queue_file_bytes == 6_000_000
    assert options.max_hash_slot_num == 5_000_000
    assert options.max_message_size == 4 << 20


def test_every_key_of_rocketmq_is_known() -> None:
    keys = set(GOLDEN.read_text().split())
    assert len(keys) > 400
    ours = {option.key for option in options_of(BrokerOptions)}
    without_effect = BrokerOptions.ignored_keys | BrokerOptions.limited_keys.keys()
    assert keys - ours - without_effect == set()
    assert ours & without_effect == set()


GROUP = "enableDLegerCommitLog=true\ndLegerPeers=n0-h:1;n1-h:2;n2-h:3\ndLegerSelfId=n0\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("aclEnable=true", "aclFile: aclEnable needs the accounts; give the path of plain_acl.yml"),
        ("enableDLegerCommitLog=true", "dLegerPeers: name all members, as in n0-127.0.0.1:9877"),
        (GROUP.replace("n0-", "a0-").replace("=n0", "=a0"), "dLegerPeers: 'a0' is not n and a number"),
        (GROUP.replace("Id=n0", "Id=n7"), "dLegerSelfId: 'n7' is not in dLegerPeers, which has n0, n1, n2"),
        (GROUP + "enableControllerMode=true\ncontrollerAddr=h:1", "a DLedger group elects its master itself"),
        (GROUP + "preferredLeaderIds=n1;n9", "preferredLeaderIds: 'n9' is not in dLegerPeers, which has n0, n1, n2"),
        (GROUP + "haMasterAddress=h:1", "haMasterAddress: a DLedger group elects its master"),
        (GROUP + "enableSlaveActingMaster=true", "enableSlaveActingMaster: a DLedger group elects another master"),
        ("enableControllerMode=true", "controllerAddr: it is empty; give the Controllers"),
        ("enableControllerMode=true\ncontrollerAddr=here", "'here' is not an address; give host:port"),
        ("enableControllerMode=true\ncontrollerAddr=a:1\nenableSlaveActingMaster=true", "enableSlaveActingMaster"),
        ("enableControllerMode=true\ncontrollerAddr=a:1\nbrokerHeartbeatInterval=2000", "set it to 6000 or more"),
        ("brokerId=-1", "brokerId: -1 asks Controllers for one; set enableControllerMode=true"),
        ("brokerId=-1\nbrokerRole=SLAVE", "brokerId: -1 asks Controllers for one"),
        (
            "storeType=defaultRocksDB",
            "storeType=defaultRocksDB: this version does not have stores or tables in RocksDB",
        ),
        ("configManagerVersion=v2", "configManagerVersion=v2: this version does not have stores or tables in RocksDB"),
        ("storePathRootDir=", "storePathRootDir: it is empty; give the directory of the store"),
        ("storePathRootDir=  ", "storePathRootDir: it is empty"),
        ("brokerRole=MASTER", "give ASYNC_MASTER"),
        ("brokerRole=SLAVE", "give each SLAVE its own id above 0"),
        ("brokerId=1", "1 is a slave's; set brokerRole=SLAVE, or leave brokerId out"),
        ("brokerRole=SYNC_MASTER\ninSyncReplicas=3", "not between minInSyncReplicas=1 and totalReplicas=2"),
        ("brokerRole=SYNC_MASTER\nminInSyncReplicas=3", "not between minInSyncReplicas=3"),
        ("flushDiskType=NEVER", "give ASYNC_FLUSH or SYNC_FLUSH"),
        ("namesrvAddr=localhost", "'localhost' is not an address; give host:port"),
        ("namesrvAddr=a:1;b:99999", "'b:99999' is not an address"),
        ("listenPrt=1", "did you mean listenPort?"),
    ],
)
def test_a_conf_file_with_a_mistake_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)
    assert "broker.conf" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("", 10909),
        ("listenPort=20001", 19999),
        ("fastListenPort=10000", 10000),
        ("fastListenPort=0", 0),
        # As where the system chooses: RocketMQ's peers could not know the port.
        ("listenPort=0", 0),
        ("listenPort=2", 0),
    ],
)
def test_the_fast_port_is_two_below_the_other(tmp_path: Path, text: str, port: int) -> None:
    assert load(tmp_path, text).fast_port == port


@pytest.mark.parametrize(
    ("text", "slave", "sync"),
    [
        ("brokerRole=SLAVE\nbrokerId=1", True, False),
        ("brokerRole=SYNC_MASTER", False, True),
        ("brokerRole=SYNC_MASTER\ntotalReplicas=3\ninSyncReplicas=3\nminInSyncReplicas=2", False, True),
        ("brokerRole=ASYNC_MASTER\ntotalReplicas=1", False, False),
    ],
)
def test_the_role_says_who_copies_and_who_waits(tmp_path: Path, text: str, slave: bool, sync: bool) -> None:
    options = load(tmp_path, text)
    assert (options.is_slave, options.is_sync_master) == (slave, sync)


def test_a_sync_master_waits_for_a_slave_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, "brokerRole=SYNC_MASTER").in_sync_replicas == 2


def test_false_is_no_reason_to_refuse(tmp_path: Path) -> None:
    text = "aclEnable=false\nenableDLegerCommitLog=false\nuseTLS=false\nenableLmq=false"
    more = "enableMultiDispatch=false\nstoreType=default\nconfigManagerVersion=v1\nenableControllerMode=false"
    warnings: list[str] = []
    assert load(tmp_path, f"{text}\n{more}", warnings) == BrokerOptions()
    assert warnings == []


@pytest.mark.parametrize(("asked", "given"), [(1, 10_000), (30_000, 30_000), (90_000, 60_000)])
def test_the_registration_period_has_bounds(asked: int, given: int) -> None:
    assert BrokerOptions(register_name_server_period=asked).register_period_ms == given


def test_queue_files_hold_whole_entries() -> None:
    assert BrokerOptions(mapped_file_size_consume_queue=101).queue_file_bytes == 120


def test_nameservers_are_listed_once() -> None:
    assert BrokerOptions(namesrv_addr=" a:1; b:2 ;a:1;;").namesrv_addrs == ["a:1", "b:2"]
    assert BrokerOptions().namesrv_addrs == []


def test_all_options_are_shown_and_read_again(tmp_path: Path) -> None:
    options = BrokerOptions(broker_name="b", broker_ip1="10.0.0.1", file_reserved_time=9)
    assert load(tmp_path, to_properties(options)) == options


def test_a_broker_in_controller_mode_needs_no_id_and_no_role(tmp_path: Path) -> None:
    text = "enableControllerMode=true\ncontrollerAddr=a:1;b:2\nbrokerId=-1\nbrokerRole=SLAVE\nstorePathEpochFile=/e"
    options = load(tmp_path, text)
    assert options.controller_addrs == ["a:1", "b:2"]
    assert load(tmp_path, "enableControllerMode=true\ncontrollerAddr=a:1").broker_id == 0


USER = '{"username":"root","password":"top-secret"}'


def test_the_values_as_the_broker_uses_them() -> None:
    options = load_conf(
        BrokerOptions,
        overrides={
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": USER,
            "authenticationWhitelist": "10, 310,",
            "authorizationWhitelist": "34",
        },
    )
    assert options.first_user == ("root", "top-secret")
    assert (options.unsigned_codes, options.open_codes) == ({10, 310}, {34})
    assert "top-secret" not in to_properties(options)
    assert BrokerOptions().first_user is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"acl_enable": True}, "aclFile: aclEnable needs the accounts"),
        ({"migrate_auth_from_v1_enabled": True}, "aclFile: migrateAuthFromV1Enabled needs the accounts"),
        ({"acl_enable": True, "acl_file": "x", "authentication_enabled": True}, "cannot both be asked"),
        ({"authorization_enabled": True}, "authorizationEnabled: without authenticationEnabled"),
        ({"authentication_whitelist": "10;310"}, "authenticationWhitelist: '10;310' is no request code"),
        ({"authorization_whitelist": "-1"}, "authorizationWhitelist: '-1'"),
        ({"init_authentication_user": "root:top-secret"}, "initAuthenticationUser: the value is not of the form"),
        ({"init_authentication_user": '["top-secret"]'}, "is not of the form"),
        ({"init_authentication_user": '{"username":"root"}'}, "is not of the form"),
        ({"init_authentication_user": '{"username":"","password":"top-secret"}'}, "is empty, or no text"),
        ({"init_authentication_user": '{"username":1,"password":"top-secret"}'}, "is empty, or no text"),
    ],
)
def test_options_of_access_control_that_do_not_fit_are_refused(
    values: dict[str, object], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigError) as error:
        BrokerOptions(**values)  # type: ignore[arg-type]
    assert text in str(error.value)
    assert "top-secret" not in str(error.value)


def test_the_file_of_accounts_is_where_rocketmq_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt/rocketmq")
    assert BrokerOptions(acl_enable=True).acl_path == "/opt/rocketmq/conf/plain_acl.yml"
    assert BrokerOptions(acl_enable=True, acl_file="/etc/x.yml").acl_path == "/etc/x.yml"


def test_the_overhead_is_that_of_the_largest_record() -> None:
    body = b"x" * 1000
    topic = topic_field("t" * RETRY_TOPIC_MAX_LENGTH)
    record = encode_record(
        *topic, body=body, properties=b"p" * MAX_PROPERTIES, queue_id=0, queue_offset=0,
        physical_offset=0, flag=0, sys_flag=0x30, born_timestamp=0, born_host=bytes(20), store_timestamp=0,
        store_host=bytes(20), reconsume_times=0, prepared_transaction_offset=0,
    )  # fmt: skip
    assert len(record) + BLANK_BYTES == len(body) + OVERHEAD_BYTES


def test_the_smallest_file_that_has_room() -> None:
    needed = 4 * 1024 * 1024 + OVERHEAD_BYTES
    check_file_size(BrokerOptions(mapped_file_size_commit_log=needed))
    with pytest.raises(ConfigError, match=rf"set maxMessageSize=4194303 or less, or set .*CommitLog={needed} or more"):
        check_file_size(BrokerOptions(mapped_file_size_commit_log=needed - 1))
    check_file_size(BrokerOptions(mapped_file_size_commit_log=needed - 1, max_message_size=4194303))


def test_the_command_refuses_it_with_one_line(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1048576\n")
    result = CliRunner().invoke(main, ["-c", str(conf), "-p"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "a message of maxMessageSize=4194304 bytes does not fit into a file of 1048576 bytes" in line


async def test_the_message_size_cannot_become_larger_than_a_file_holds() -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(UPDATE_BROKER_CONFIG.code, {}, b"maxMessageSize=8388608\n"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "a message of maxMessageSize=8388608 bytes does not fit into" in (answer.remark or "")
        smaller = Command(UPDATE_BROKER_CONFIG.code, {}, b"maxMessageSize=1000\n")
        assert (await client.invoke(addr, smaller)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("guarded", "options", "allowed"),
    [
        (False, {}, True),
        (True, {}, False),
        (False, {"ha_shared_secret": "x"}, False),
        (True, {"ha_allow_plain_peers": "true"}, True),
        (False, {"ha_allow_plain_peers": "false"}, False),
    ],
)
def test_plain_slaves_need_the_option_with_access_control(
    monkeypatch: pytest.MonkeyPatch, guarded: bool, options: dict[str, str], allowed: bool
) -> None:
    monkeypatch.setattr(BrokerOptions, "has_access_control", guarded)
    assert BrokerOptions(**options).allow_plain_peers is allowed  # type: ignore[arg-type]
