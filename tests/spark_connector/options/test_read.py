import pickle
from pathlib import Path

import pytest

from mqcommon.errors import UserError
from sdk import Credentials
from spark_connector.offsets import EARLIEST, LATEST
from spark_connector.options.connection import NAMESRV_ADDR
from spark_connector.options.read import ReadOptions

GOOD = {"nameserver": "127.0.0.1:9876", "topic": "flights"}


def test_defaults_read_everything() -> None:
    options = ReadOptions.parse(GOOD)
    assert (options.wanted_start, options.wanted_end) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert not options.include_properties


def test_names_in_any_case() -> None:
    options = ReadOptions.parse({**GOOD, "STARTINGOFFSETS": "Latest", "minpartitions": "7"})
    assert (options.wanted_start, options.min_partitions) == (LATEST, 7)


@pytest.mark.parametrize("alias", ["namesrvAddr", "nameServer", "nameserver", "nameserver.addr"])
def test_aliases_of_nameserver(alias: str) -> None:
    assert ReadOptions.parse({"topic": "t", alias: "h:1"}).nameserver == "h:1"


def test_the_environment_names_the_nameserver_when_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMESRV_ADDR, "env:9876")
    assert ReadOptions.parse({"topic": "t"}).nameserver == "env:9876"
    assert ReadOptions.parse(GOOD).nameserver == "127.0.0.1:9876"


def test_topics_are_a_comma_list() -> None:
    assert ReadOptions.parse({**GOOD, "topic": " a, b,,a "}).topics == ("a", "b")


@pytest.mark.parametrize("topic", ["", " , "])
def test_no_topic_says_how_to_give_one(topic: str) -> None:
    with pytest.raises(UserError, match=r'no topic is given; use \.option\("topic"'):
        ReadOptions.parse({**GOOD, "topic": topic})


def test_a_misspelt_option_names_the_nearest() -> None:
    with pytest.raises(UserError, match="option startingofset is unknown; did you mean startingOffsets"):
        ReadOptions.parse({**GOOD, "startingofset": "earliest"})


def test_an_option_near_to_none_lists_all() -> None:
    with pytest.raises(UserError, match="option zzz is unknown; options are accessKey, assign, brokerName, brok"):
        ReadOptions.parse({**GOOD, "zzz": "1"})


@pytest.mark.parametrize(("name", "other"), [("topic", "subscribe"), ("nameServer", "namesrvAddr")])
def test_an_option_under_two_of_its_names_is_refused(name: str, other: str) -> None:
    with pytest.raises(UserError, match=f"(?i)options {name} and {other} are two names of one option"):
        ReadOptions.parse({name: "a:1", other: "b:1"})
    with pytest.raises(UserError, match=f"(?i)options {name} and {other} are two names of one option"):
        ReadOptions.of_stream({name: "a:1", other: "a:1"})


def test_a_path_is_not_a_topic() -> None:
    with pytest.raises(UserError, match=r'use \.option\("topic", \.\.\.\)\.load\(\) without a path'):
        ReadOptions.parse({**GOOD, "path": "flights"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("failOnDataLoss", "yes", "option failOnDataLoss: 'yes' is not a boolean; give true or false"),
        ("minPartitions", "many", "option minPartitions: 'many' is not an integer"),
        ("maxRecordsPerBatch", "0", "option maxRecordsPerBatch: 0 is too small"),
        ("startingOffsets", "first", "option startingOffsets: 'first' cannot be read"),
        ("endingOffsets", "earliest", "option endingOffsets: 'earliest' cannot be read"),
    ],
)
def test_a_bad_value_names_the_option_and_the_remedy(name: str, value: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        ReadOptions.parse({**GOOD, name: value})
    assert said in str(caught.value)


def test_start_after_end_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UserError, match="is after"):
        ReadOptions.parse({**GOOD, "startingOffsets": '{"t":{"b":{"0":5}}}', "endingOffsets": '{"t":{"b":{"0":4}}}'})


WHO = {"accessKey": "spark", "secretKey": "secret of spark"}


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("without_keys")
def test_credentials_come_from_options_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spark.yml"
    file.touch(0o600)
    file.write_text("accessKey: file\nsecretKey: secret of file\n")
    assert ReadOptions.parse(GOOD).credentials is None
    given = ReadOptions.parse({**GOOD, **WHO, "securityToken": "t"})
    assert given.credentials == Credentials("spark", "secret of spark", "t")
    in_file = ReadOptions.parse({**GOOD, "credentialsFile": str(file)})
    assert in_file.credentials == Credentials("file", "secret of file")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "env")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "secret of env")
    assert ReadOptions.parse(GOOD).credentials == Credentials("env", "secret of env")
    assert ReadOptions.parse({**GOOD, "credentialsFile": str(file)}).credentials == in_file.credentials
    assert ReadOptions.parse({**GOOD, **WHO}).credentials == Credentials("spark", "secret of spark")
    # Executors get the options as they are, and need neither the file nor the environment.
    assert pickle.loads(pickle.dumps(in_file)).credentials == in_file.credentials
    file.chmod(0o644)
    with pytest.raises(UserError, match="lets others use it; run chmod 600"):
        ReadOptions.parse({**GOOD, "credentialsFile": str(file)})


@pytest.mark.usefixtures("without_keys")
def test_secrets_are_in_no_text() -> None:
    options = ReadOptions.parse({**GOOD, **WHO, "securityToken": "secret token"})
    assert "secret" not in repr(options).replace("secret_key", "")
    with pytest.raises(UserError, match="accessKey and secretKey must both be set") as raised:
        ReadOptions.parse({**GOOD, "secretKey": "hidden"})
    assert "hidden" not in str(raised.value)


@pytest.mark.usefixtures("without_keys")
def test_credentials_are_given_once() -> None:
    with pytest.raises(UserError, match="credentialsFile cannot be given together with accessKey"):
        ReadOptions.parse({**GOOD, **WHO, "credentialsFile": "x"})
