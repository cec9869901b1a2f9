"""broker.conf: RocketMQ's keys, what is refused, what is passed over with a warning."""

import re
from pathlib import Path

import pytest

from broker.options import BrokerOptions
from mqcommon.errors import ConfigError
from mqcommon.options.conf_file import load_conf, to_properties
from mqcommon.options.fields import options_of

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
    assert keys - ours - BrokerOptions.ignored_keys == set()
    assert ours & BrokerOptions.ignored_keys == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("aclEnable=true", "aclFile: aclEnable needs the accounts; give the path of plain_acl.yml"),
        ("enableDLegerCommitLog=true", "DLedger"),
        ("enableControllerMode=true", "controllerAddr: it is empty; give the Controllers"),
        ("enableControllerMode=true\ncontrollerAddr=here", "'here' is not an address; give host:port"),
        ("enableControllerMode=true\ncontrollerAddr=a:1\nenableSlaveActingMaster=true", "enableSlaveActingMaster"),
        ("enableControllerMode=true\ncontrollerAddr=a:1\nbrokerHeartbeatInterval=2000", "set it to 6000 or more"),
        ("brokerId=-1", "brokerId: -1 asks Controllers for one; set enableControllerMode=true"),
        ("brokerId=-1\nbrokerRole=SLAVE", "brokerId: -1 asks Controllers for one"),
        ("storeType=defaultRocksDB", "storeType: this version does not have stores or tables in RocksDB"),
        ("configManagerVersion=v2", "configManagerVersion: this version does not have stores or tables in RocksDB"),
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
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
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
def test_roles(tmp_path: Path, text: str, slave: bool, sync: bool) -> None:
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
