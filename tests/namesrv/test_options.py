import json
from pathlib import Path

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.conf_file import load_conf, to_properties
from skylark.mqcommon.options.fields import options_of
from skylark.namesrv.options import NamesrvOptions

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "wire"


def test_the_shipped_conf_loads_without_warnings() -> None:
    warnings: list[str] = []
    options = load_conf(NamesrvOptions, ROOT / "conf" / "namesrv.conf", warnings=warnings)
    assert options == NamesrvOptions(bind_address="127.0.0.1")
    assert warnings == []


def test_defaults_are_those_of_rocketmq() -> None:
    lines = to_properties(NamesrvOptions()).splitlines()
    for line in (
        "listenPort=9876",
        "bindAddress=",
        "scanNotActiveBrokerInterval=5000",
        "serverChannelMaxIdleTimeSeconds=120",
        "configBlackList=configBlackList;configStorePath;kvConfigPath",
        "deleteTopicWithBrokerRegistration=false",
        "enableAllTopicList=true",
        "enableTopicList=true",
        "needWaitForService=false",
        "orderMessageEnable=false",
        "returnOrderTopicConfigToBroker=true",
        "supportActingMaster=false",
        "waitSecondsForService=45",
    ):
        assert line in lines


@pytest.mark.parametrize("recording", ["admin_4.9.8.jsonl", "admin_5.3.3.jsonl"])
def test_every_key_of_a_java_name_server_is_known(recording: str) -> None:
    known = {o.key for o in options_of(NamesrvOptions)} | NamesrvOptions.ignored_keys
    text = _config_answer(GOLDEN / recording)
    keys = {line.partition("=")[0] for line in text.splitlines() if "=" in line}
    assert len(keys) > 20
    assert keys <= known


def test_no_key_is_both_used_and_ignored() -> None:
    assert not {o.key for o in options_of(NamesrvOptions)} & NamesrvOptions.ignored_keys


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("controllerDLegerSelfId=n0", "controllerDLegerPeers: name all Controllers, as in n0-127.0.0.1:9877"),
        ("controllerDLegerPeers=n0:h:1", "controllerDLegerPeers: 'n0:h:1' is not ID-HOST:PORT"),
        ("controllerDLegerPeers=n0-h:1;n0-h:2", "controllerDLegerPeers: n0 is there twice"),
        ("controllerDLegerPeers=n0-h:1", "controllerDLegerSelfId: '' is not in controllerDLegerPeers, which has n0"),
        ("controllerType=jRaft", "controllerType: jRaft is not supported; use DLedger"),
        ("controllerDLegerGroup=", "controllerDLegerGroup: it is empty"),
    ],
)
def test_a_controller_that_cannot_be_is_refused(tmp_path: Path, text: str, error: str) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"enableControllerInNamesrv=true\n{text}")
    with pytest.raises(ConfigError) as caught:
        load_conf(NamesrvOptions, conf)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_that_are_switched_off_are_no_reason_to_refuse(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("enableControllerInNamesrv=false\nuseTLS=false")
    assert load_conf(NamesrvOptions, conf) == NamesrvOptions()


def _config_answer(path: Path) -> str:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["name"].startswith("319.RESP"):
            frame = bytes.fromhex(row["hex"])
            return frame[8 + (int.from_bytes(frame[4:8]) & 0xFFFFFF) :].decode()
    raise AssertionError(f"no answer to 319 in {path}")
