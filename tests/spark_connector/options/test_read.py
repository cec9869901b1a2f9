import json
import pickle
from pathlib import Path

import pytest

from skylark import Credentials
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.expression import Sql
from skylark.spark_connector.offsets import COMMITTED, EARLIEST, LATEST
from skylark.spark_connector.options.connection import NAMESRV_ADDR
from skylark.spark_connector.options.read import ReadOptions, only_of_streams

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
    with pytest.raises(UserError, match="option zzz is unknown; options are accessKey, assign, badRows, bad"):
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


A0, A1 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


def parsed(**given: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": "h:1", **given})


def test_assigned_queues_name_their_topics() -> None:
    options = parsed(assign='{"t": {"a": [1, 0, 1]}}')
    assert options.assigned == (A1, A0)
    assert options.topics == ("t",)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"t": 1}', '{"t": {"a": 1}}', '{"t": {"a": ["0"]}}', '{"t": {"a": [-1]}}', '{"t": {"a": []}}']
)
def test_an_assignment_that_cannot_be_read_shows_a_good_one(text: str) -> None:
    with pytest.raises(UserError, match=r'option assign: .*give JSON like \{"topic":\{"broker":\[0,1\]\}\}'):
        parsed(assign=text)


def test_only_one_option_names_what_is_read() -> None:
    with pytest.raises(UserError, match="options topic and topicPattern exclude each other"):
        parsed(topic="t", topicPattern="t.*")


def test_a_pattern_is_compiled_at_once() -> None:
    with pytest.raises(UserError, match="option topicPattern: '\\(' is no regular expression: missing"):
        parsed(topicPattern="(")


def test_filters_as_consumers_take_them() -> None:
    assert parsed(topic="t").expression == "*"
    assert not parsed(topic="t").filters
    tags = parsed(topic="t", subExpression=" A || B ")
    assert (tags.tags, tags.filters) == ({"A", "B"}, True)
    sql = parsed(topic="t", subExpression="n > 5", expressionType="sql92")
    assert (sql.expression, sql.tags, sql.filters) == (Sql("n > 5"), frozenset(), True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subExpression": "||"}, r"option subExpression: .*give \*, or tags separated by"),
        ({"subExpression": "n > 5"}, "for an SQL92 condition set expressionType=SQL92"),
        ({"subExpression": "n >", "expressionType": "SQL92"}, "option subExpression: SQL92 expression, character"),
        ({"expressionType": "SQL"}, "give TAG or SQL92"),
    ],
)
def test_wrong_filters_say_what_to_give(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        parsed(topic="t", **given)


def test_times_by_queue() -> None:
    options = parsed(topic="t", startingOffsetsByTimestamp='{"t": {"a": {"0": 7, "1": 9}}}')
    assert options.start_times == {A0: 7, A1: 9}
    assert options.end_times == {}


@pytest.mark.parametrize("time", ["x", '{"t": {"a": {"0": "7"}}}', '{"t": {"a": [7]}}', '{"t": {"a": {"x": 7}}}'])
def test_times_that_cannot_be_read_show_good_ones(time: str) -> None:
    with pytest.raises(UserError, match=r"option endingOffsetsByTimestamp: .*1700000000000"):
        parsed(topic="t", endingOffsetsByTimestamp=time)


def test_times_before_1970_are_refused() -> None:
    with pytest.raises(UserError, match=r"the time -1 of .* is negative"):
        parsed(topic="t", startingOffsetsByTimestamp=json.dumps({"t": {"a": {"0": -1}}}))


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"subscribe": "t"}, "topic", "t"),
        ({"subscribePattern": "t.*"}, "topic_pattern", "t.*"),
        ({"subscribe": "t", "includeHeaders": "true"}, "include_properties", True),
        ({"subscribe": "t", "kafkaConsumer.pollTimeoutMs": "7"}, "pull_timeout_ms", 7),
        ({"topic": "t", "group": "g"}, "consumer_group", "g"),
        ({"consumer.topic": "t", "consumer.tag": "A"}, "sub_expression", "A"),
        ({"topic": "t", "schemaStyle": "Kafka"}, "schema_style", "kafka"),
    ],
)
def test_names_of_other_sources(given: dict[str, str], name: str, value: object) -> None:
    assert getattr(ReadOptions.parse(given), name) == value


@pytest.mark.parametrize(
    ("name", "said"),
    [("kafka.bootstrap.servers", "name the NameServers with nameserver"), ("asign", "did you mean assign")],
)
def test_wrong_names_say_the_right_one(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ReadOptions.parse({"topic": "t", name: "x"})


STREAM = {"nameserver": "h:1", "topic": "t"}


def test_a_stream_starts_at_the_end_and_waits_for_brokers() -> None:
    options = ReadOptions.of_stream(STREAM)
    assert (options.wanted_start, options.max_trigger_delay_ms, options.has_limits) == (LATEST, 900_000, False)
    assert options.broker_wait_ms == 600_000
    assert ReadOptions.parse(STREAM).broker_wait_ms == 0


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90", 90), ("90ms", 90), ("90 s", 90_000), ("2min", 120_000), ("1H", 3_600_000), ("1d", 86_400_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert ReadOptions.of_stream({**STREAM, "maxTriggerDelay": text}).max_trigger_delay_ms == ms


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay: 'soon' is no duration; give a number with ms, s"),
        ({"maxTriggerDelay": "5 weeks"}, "is no duration"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "5 is more than maxOffsetsPerTrigger, 4"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"endingTimestamp": "5"}, "option endingTimestamp: a stream has no end; use spark.read"),
        ({"endingOffsets": '{"t":{"a":{"0":5}}}'}, "option endingOffsets: a stream has no end"),
        ({"endingOffsetsByTimestamp": '{"t":{"a":{"0":5}}}'}, "option endingOffsetsByTimestamp: a stream has no end"),
        ({"pushdown": "true"}, "option pushdown: streams have none"),
        ({"commitOffsets": "true"}, "option consumerGroup: commitOffsets=true needs it; name the group"),
        ({"startingOffsets": "committed"}, "option consumerGroup: startingOffsets=committed needs it"),
        ({"onDataLoss": "report"}, "option onDataLoss: report needs lostRangesPath"),
    ],
)
def test_mistakes_say_what_to_do(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        ReadOptions.of_stream({**STREAM, **given})
    assert said in str(caught.value)


def test_what_is_allowed() -> None:
    options = ReadOptions.of_stream(
        {
            **STREAM,
            "endingOffsets": "latest",
            "startingOffsets": "committed",
            "kafka.group.id": "g",
            "commitOffsets": "true",
        }
    )
    assert (options.wanted_start, options.consumer_group) == (COMMITTED, "g")


def test_which_options_only_streams_have() -> None:
    assert only_of_streams(["MaxOffsetsPerTrigger", "topic", "startingOffsets", "brokerWaitMs", "commitOffsets"]) == [
        "MaxOffsetsPerTrigger",
        "commitOffsets",
    ]


def test_sizes_take_units() -> None:
    options = ReadOptions.of_stream({**STREAM, "bytesPerTask": "64MB", "maxBytesPerTrigger": "1 GiB"})
    assert (options.bytes_per_task, options.max_bytes_per_trigger) == (64 << 20, 1 << 30)
    with pytest.raises(UserError, match="bytesPerTask: '64 megs' is not an integer, nor a size as 64MB"):
        ReadOptions.parse({**STREAM, "bytesPerTask": "64 megs"})


LETTERS = {"valueFormat": "json", "badRows": "deadLetter"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"valueFormat": "xml"}, "option valueFormat: 'xml' is not a choice; give json or avro or cbor or protobuf"),
        ({"valueSchema": "id bigint"}, "options valueSchema and valueMessage need valueFormat"),
        ({"valueFormat": "avro"}, "option valueFormat: avro needs valueSchema"),
        ({"valueFormat": "protobuf", "valueSchema": "x"}, "protobuf needs valueMessage"),
        ({"valueFormat": "json", "valueMessage": "x"}, "belongs to valueFormat=protobuf"),
        ({"badRows": "null"}, "option badRows: null needs valueFormat"),
        ({"valueFormat": "json", "badRowsTopic": "x"}, "option badRowsTopic needs badRows=deadLetter"),
        ({**LETTERS, "badRowsTopic": "a b"}, "option badRowsTopic: "),
        ({**LETTERS, "topic": "t,t-bad-rows"}, "option badRowsTopic: t-bad-rows is read, too; name another topic"),
        ({**LETTERS, "badRowsTopic": "t"}, "option badRowsTopic: t is read, too"),
        ({**LETTERS, "topic": "", "topicPattern": "t.*"}, "needs a name that the pattern does not match"),
        ({**LETTERS, "topic": "", "topicPattern": "t.*", "badRowsTopic": "tx"}, "needs a name that the pattern"),
    ],
)
def test_options_of_formats_that_exclude_each_other_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        ReadOptions.parse({**STREAM, **given})
    assert said in str(caught.value)


@pytest.mark.parametrize("files", [{"storePath": "/store"}, {"tierPath": "file:///bucket"}])
def test_files_have_no_dead_letters(files: dict[str, str]) -> None:
    with pytest.raises(UserError, match="Path reads without a broker; give null or fail"):
        ReadOptions.parse({"topic": "t", **files, **LETTERS})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"storePath": "/store"}, "options storePath and tierPath exclude each other"),
        ({"nameserver": "h:1"}, "option nameserver is for brokers, and tierPath reads a bucket without one; leave out"),
        ({"numRetries": "1", "secretKey": "s", "accessKey": "a"}, "leave out accessKey and secretKey and numRetries"),
        (
            {"expressionType": "SQL92", "subExpression": "a = 1"},
            "SQL92 conditions are evaluated by brokers, and tierPath",
        ),
        ({"tierPath": ""}, "option tierSet is for tierPath only"),
    ],
)
def test_options_that_a_bucket_does_not_need_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        ReadOptions.parse({"tierPath": "s3://bucket/x", "tierSet": "a, b,a", "topic": "t", **given})
    assert said in str(caught.value)


def test_a_bucket_has_other_defaults() -> None:
    options = ReadOptions.parse({"TierPath": "s3://bucket/x", "tierSet": "a, b,a", "topic": "t"})
    assert options.tier_sets == ("a", "b")
    assert (options.pull_timeout_ms, options.broker_wait_ms, options.min_rows_per_task) == (30_000, 60_000, 100_000)
    given = ReadOptions.parse({"tierPath": "s3://bucket/x", "topic": "t", "MINROWSPERTASK": "0"})
    assert given.min_rows_per_task == 0
    assert ReadOptions.of_stream({"tierPath": "s3://bucket/x", "topic": "t"}).broker_wait_ms == 600_000


def test_dead_letters_have_a_topic_for_each_topic_or_one_for_all() -> None:
    assert ReadOptions.parse({**STREAM, **LETTERS}).dead_letter_topic("t") == "t-bad-rows"
    named = ReadOptions.parse({"nameserver": "h:1", "topicPattern": "t.*", **LETTERS, "badRowsTopic": "bad"})
    assert named.dead_letter_topic("t") == "bad"
