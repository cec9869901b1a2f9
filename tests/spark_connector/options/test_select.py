import json

import pytest

from mqcommon.errors import UserError
from mqcommon.message.queue import MessageQueue
from sdk.consumer.expression import Sql
from spark_connector.options.read import ReadOptions

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
