import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import UserError
from mqcommon.message.queue import MessageQueue
from spark_connector.options.read import ReadOptions
from spark_connector.reading.choosing import check_partition_numbers, chosen, matching, with_topics
from spark_connector.schema import MAX_QUEUES, partition_number

QUEUES = [MessageQueue(topic, broker, queue) for topic in "tu" for broker in "ab" for queue in range(3)]
NAMES = st.lists(st.sampled_from(["flights", "flights-2", "xflights", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "%RETRY%g"]))


def with_pattern(pattern: str) -> ReadOptions:
    return ReadOptions.parse({"topicPattern": pattern})


@given(NAMES, st.sampled_from([".*", "flights", "flights.*", "x?flights", "[^-]*"]))
def test_a_pattern_matches_whole_names_of_users_topics(names: Sequence[str], pattern: str) -> None:
    users = {name for name in names if "flights" in name}
    assert matching(pattern, names) == sorted(name for name in users if re.match(f"(?:{pattern})$", name))


def test_the_topics_take_the_place_of_the_pattern() -> None:
    options = with_topics(with_pattern("f.*"), lambda _: ["g", "f2", "f1"])
    assert (options.topics, options.topic_pattern) == (("f1", "f2"), "")


def test_a_pattern_without_topics_is_refused() -> None:
    with pytest.raises(UserError, match="no topic of the cluster matches 'f'"):
        with_topics(with_pattern("f"), lambda _: ["g"])


def test_named_topics_are_not_looked_up() -> None:
    options = ReadOptions.parse({"topic": "t"})
    assert with_topics(options, lambda _: pytest.fail("asked")) is options


@given(st.sets(st.sampled_from(QUEUES), min_size=1))
def test_assigned_queues_and_no_others(wanted: set[MessageQueue]) -> None:
    tree: dict[str, dict[str, list[int]]] = {}
    for topic, broker, queue in wanted:
        tree.setdefault(topic, {}).setdefault(broker, []).append(queue)
    options = ReadOptions.parse({"assign": str(tree).replace("'", '"')})
    assert chosen(QUEUES, options) == sorted(wanted)


def test_an_assigned_queue_that_no_broker_has() -> None:
    with pytest.raises(UserError, match="option assign names t a 9, which no broker has; queues: t a 0, t a 1"):
        chosen(QUEUES, ReadOptions.parse({"assign": '{"t": {"a": [9, 1]}}'}))


@given(st.text(max_size=9), st.integers(0, MAX_QUEUES - 1))
def test_partition_numbers_hold_the_queue(broker: str, queue: int) -> None:
    number = partition_number(broker, queue)
    assert 0 <= number < 2**31
    assert number % MAX_QUEUES == queue


def test_partition_numbers_do_not_change_with_the_version() -> None:
    assert [partition_number("broker-a", queue) for queue in (0, 7)] == [522_518_528, 522_518_535]


def test_equal_partition_numbers_are_refused() -> None:
    seen: dict[int, str] = {}
    for at in range(100_000):  # two of some thousand names have equal numbers
        name = f"{at**3}-{at}"
        other = seen.setdefault(partition_number(name, 0), name)
        if other != name:
            break
    check_partition_numbers([MessageQueue("t", name, 0), MessageQueue("u", other, 0), MessageQueue("t", other, 1)])
    queues = [MessageQueue("t", name, 0), MessageQueue("t", other, 0)]
    with pytest.raises(UserError, match="the same partition numbers"):
        chosen(queues, ReadOptions.parse({"topic": "t", "schemaStyle": "kafka"}))
    assert chosen(queues, ReadOptions.parse({"topic": "t"})) == queues


def test_more_queues_than_partition_numbers() -> None:
    with pytest.raises(UserError, match="cannot number queue 4096 of topic t"):
        check_partition_numbers([MessageQueue("t", "a", 4096)])
