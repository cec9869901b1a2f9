"""A trace goes through the brokers into Spark: a row has the context of the message that it was."""

from collections.abc import Iterator
from threading import Event

import pytest
from opentelemetry import propagate
from opentelemetry.trace import SpanKind
from pyspark.sql import SparkSession

from skylark import ConsumeFrom, RetryPolicy
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.sdk.blocking import Producer, PushConsumer
from skylark.sdk.testing import Cluster
from tests.support.spans import Seen

pytestmark = pytest.mark.spark

WAIT_S = 60


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


def test_a_request_its_message_a_retry_another_message_and_a_row_are_one_tree(
    spark: SparkSession, cluster: Cluster, seen: Seen
) -> None:
    billed = Event()
    cluster.create_topic("orders", queues=1)
    cluster.create_topic("invoices", queues=1)
    with Producer(cluster.nameserver) as producer:

        def bill(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                raise ConnectionError("the shop's database is away")
            producer.send(Message("invoices", b"17"))
            billed.set()

        with seen.tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER):
            producer.send(Message("orders", b"a cup of tea"))
        with PushConsumer(
            cluster.nameserver, group="billing", subscriptions={"orders": "*"}, handler=bill,
            consume_from=ConsumeFrom.FIRST_OFFSET, retry=RetryPolicy(delays_ms=[1_000]),
        ):  # fmt: skip
            assert billed.wait(WAIT_S)
    options = {"nameserver": cluster.nameserver, "topic": "invoices", "includeProperties": "true"}
    for row in spark.read.format("rocketmq").options(**options).load().collect():
        with seen.tracer.start_as_current_span("invoice", propagate.extract(row.properties), SpanKind.CONSUMER):
            assert row.body == b"17"
    assert seen.tree() == [
        "POST /orders",
        "POST /orders > send orders",
        "POST /orders > send orders > process orders",
        "POST /orders > send orders > process orders",
        "POST /orders > send orders > process orders > send invoices",
        "POST /orders > send orders > process orders > send invoices > invoice",
        "POST /orders > send orders > retry orders",
    ]
