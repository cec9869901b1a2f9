"""Topics that do not exist when rows are written to them, at real brokers."""

import pytest

from mqcommon.errors import RouteNotFound
from sdk.blocking import PullConsumer
from sdk.testing import Cluster, cluster_fixture
from spark_connector.options.write import WriteOptions
from spark_connector.writing.rows import Lot
from spark_connector.writing.target import Deduplicated
from spark_connector.writing.task import Task

pair = cluster_fixture(brokers=2, scope="module")


def write(cluster: Cluster, topic: str, *, create_topic: bool) -> int:
    options = WriteOptions(nameserver=cluster.nameserver, topic=topic, create_topic=create_topic, send_timeout_ms=500)
    options.check()
    with Deduplicated(options, Task("query", "0", 0)) as target:
        return target.send(Lot(topic, [b"a", b"b", b"c"]))


def test_a_topic_that_is_missing_is_created_at_all_brokers(pair: Cluster) -> None:
    assert write(pair, "new", create_topic=True) == 3
    with PullConsumer(pair.nameserver) as consumer:
        queues = consumer.message_queues("new")
        assert sorted(f"{queue.broker_name} {queue.queue_id}" for queue in queues) == [
            f"broker-{name} {number}" for name in "ab" for number in range(4)
        ]
        assert sum(consumer.max_offset(queue) for queue in queues) == 3


def test_rows_of_a_task_that_is_run_again_are_in_the_topic_already(pair: Cluster) -> None:
    assert write(pair, "again", create_topic=True) == 3
    assert write(pair, "again", create_topic=True) == 0


def test_a_topic_that_is_there_stays_as_it_is(pair: Cluster) -> None:
    pair.create_topic("narrow", queues=1)
    assert write(pair, "narrow", create_topic=True) == 3
    with PullConsumer(pair.nameserver) as consumer:
        assert len(consumer.message_queues("narrow")) == 2


def test_without_the_option_the_error_names_it(pair: Cluster) -> None:
    with pytest.raises(RouteNotFound, match=r'mqadmin updateTopic creates topics, .*option\("createTopic", "true"\)'):
        write(pair, "missing", create_topic=False)


def test_brokers_that_create_no_topics_are_obeyed() -> None:
    with (
        Cluster(options={"autoCreateTopicEnable": False}) as cluster,
        pytest.raises(RouteNotFound, match="autoCreateTopicEnable=false"),
    ):
        write(cluster, "missing", create_topic=True)
