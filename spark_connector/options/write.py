"""The options of ``df.write`` and ``df.writeStream``, checked before anything is sent.

Neighbours: connection.py (parsing, and the options that reading has, too), docs/guides/spark-writing.md (its
table is made from here).
"""

from dataclasses import dataclass
from typing import ClassVar

from skylark.mqcommon.arguments import INT_MAX
from skylark.mqcommon.errors import RequestRefused, UserError
from skylark.mqcommon.names import check_group, check_topic
from skylark.mqcommon.options.fields import option
from skylark.spark_connector.formats.format_spec import BY_COLUMN
from skylark.spark_connector.options.connection import ConnectionOptions
from skylark.spark_connector.options.formats import FORMAT_HELP, FORMATS, MESSAGE_HELP, check_format


@dataclass(frozen=True)
class WriteOptions(ConnectionOptions):
    """Options of ``df.write.format("rocketmq")`` and ``df.writeStream.format("rocketmq")``."""

    topic: str = option("", "topic of all rows; without it the column `topic` names each row's own")
    dedup: bool = option(
        True, "send each row once, even if its task or its epoch is run again; `false` sends faster, and may send twice"
    )
    create_topic: bool = option(
        False, "create a topic that does not exist, where and as a send would (`autoCreateTopicEnable`)"
    )
    query_id: str = option(
        "", "recognises a query, or a batch job, that is run again; streams have an id in their checkpoint"
    )
    producer_group: str = option("spark-rocketmq", "group of the producers")
    send_timeout_ms: int = option(3_000, "how long a send may take", unit="ms", minimum=1, maximum=INT_MAX)
    num_retries: int = option(
        3, "retries of sends of which it is not known whether they stored their messages", minimum=0, maximum=100
    )

    broker_wait_ms: int = option(
        60_000, "how long a task waits for brokers and NameServers that are away, before it fails", unit="ms", minimum=0
    )

    # --- what bodies are
    value_format: str = option("", FORMAT_HELP, choices=FORMATS)
    value_schema: str = option(
        "",
        "of valueFormat. avro: the schema in JSON; protobuf: a file of `protoc --include_imports --descriptor_set_out`;"
        " json, cbor: none, they take the types of the column",
    )
    value_message: str = option("", MESSAGE_HELP)

    # --- Spark passes these options of its own to the sinks of streams
    checkpoint_location: str = option("", "Spark's own, for streams: where a query keeps what it has done")
    query_name: str = option("", "Spark's own, for streams: a name to show")

    path_hint: ClassVar[str] = 'use .option("topic", ...).save() or .start() without a path'

    def check(self) -> None:
        """Raise UserError for combinations of options that are invalid."""
        super().check()
        check_format(self)
        if self.value_format in BY_COLUMN and self.value_schema:
            raise UserError(
                f"option valueSchema: {self.value_format} is written with the types of the column value; leave it out,"
                " and cast columns that should have others"
            )
        if "," in self.topic:
            raise UserError(
                f"option topic is {self.topic!r}, but rows are written to one topic; leave it out, and let a column"
                " topic name the topic of each row"
            )
        try:
            if self.topic:
                check_topic(self.topic)
            check_group(self.producer_group)
        except RequestRefused as refused:
            raise UserError(f"options topic and producerGroup: {refused.remark}") from None
