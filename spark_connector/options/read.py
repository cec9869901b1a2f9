"""The options of ``spark.read`` and ``spark.readStream``, checked before anything is read.

Both have all options, since Spark asks for the columns before it says which it is.
Neighbours: connection.py (parsing, and the options that writing has, too), docs/spark.md (its table is made
from here).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from mqcommon.errors import UserError
from mqcommon.options.fields import option
from spark_connector.offsets import COMMITTED, EARLIEST, LATEST, Wanted, check_order, parse_offsets
from spark_connector.options.connection import ConnectionOptions
from spark_connector.options.select import ALIASES, SelectOptions
from spark_connector.options.store import StoreOptions
from spark_connector.options.stream import StreamOptions

STARTING_WORDS: Mapping[str, int] = MappingProxyType({"earliest": EARLIEST, "latest": LATEST, "committed": COMMITTED})
ENDING_WORDS: Mapping[str, int] = MappingProxyType({"latest": LATEST})
# What to do when messages that should be read do not exist.
FAIL, SKIP, REPORT = "fail", "skip", "report"
ANY_GROUP = "spark-rocketmq"


@dataclass(frozen=True)
class ReadOptions(StreamOptions, StoreOptions, SelectOptions, ConnectionOptions):
    """Options of ``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")``."""

    topic: str = option("", "topics to read, separated by commas")
    starting_offsets: str = option(
        "earliest",
        "where to start: `earliest`, `latest` (the default of streams), `committed` (of consumerGroup), or JSON, queue"
        " by queue",
    )
    ending_offsets: str = option("latest", "where to end (exclusive): `latest` or JSON, queue by queue")
    starting_timestamp: int = option(
        -1, "start at the first message stored at or after it (overrides startingOffsets; -1: not used)", unit="ms"
    )
    fail_on_data_loss: bool = option(
        True, "fail when messages to be read have been deleted; otherwise log that and go on"
    )
    on_data_loss: str = option(
        "",
        "the same with a third way (overrides failOnDataLoss): `report` writes them to lostRangesPath, too",
        choices=(FAIL, SKIP, REPORT),
    )
    lost_ranges_path: str = option("", "directory for `onDataLoss=report`; the same on all machines")
    include_properties: bool = option(False, "add the column `properties`, map<string,string>")
    check_crc: bool = option(False, "compare each body with its CRC; costs about a third of the speed")
    min_partitions: int = option(0, "split queues to get at least this many partitions (0: one per queue)", minimum=0)
    max_records_per_partition: int = option(
        0, "split queues into partitions of at most this many rows (0: no limit)", minimum=0
    )
    max_records_per_batch: int = option(10_000, "rows handed to Spark at once", minimum=1, maximum=1_000_000)
    pull_batch_size: int = option(
        8_192, "messages per pull; brokers may have lower limits", minimum=1, maximum=1_000_000
    )
    pull_timeout_ms: int = option(
        10_000, "how long to wait for an answer, and for a message that should be there", unit="ms", minimum=1
    )
    num_retries: int = option(3, "retries when a broker does not answer", minimum=0, maximum=100)
    retry_interval_ms: int = option(
        200, "pause before the first retry; doubles each time, up to 10 s", unit="ms", minimum=0
    )
    broker_wait_ms: int = option(
        0,
        "how long a task waits for a broker that is away, before it fails (default of streams: 600000)",
        unit="ms",
        minimum=0,
    )
    consumer_group: str = option(
        ANY_GROUP, "group in the brokers' statistics of reads; its offsets are used by `startingOffsets=committed`"
    )

    #: Unless the user gives others: a stream has time.
    stream_defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"startingoffsets": "latest", "brokerwaitms": "600000"}
    )
    path_hint: ClassVar[str] = (
        'use .option("topic", ...).load() without a path; a store directory is given by .option("storePath", ...)'
    )
    aliases: ClassVar[Mapping[str, str]] = MappingProxyType({**ConnectionOptions.aliases, **ALIASES})

    @classmethod
    def of_stream(cls, given: Mapping[str, str]) -> Self:
        """Parse the user's options of a stream; UserError when one is unknown, invalid, or one of batches only."""
        options = cls.parse({**cls.stream_defaults, **{name.lower(): text for name, text in given.items()}})
        ends = {
            "endingTimestamp": options.ending_timestamp >= 0,
            "endingOffsetsByTimestamp": bool(options.end_times),
            "endingOffsets": options.wanted_end != LATEST,
        }
        for name in (name for name, is_given in ends.items() if is_given):
            raise UserError(f"option {name}: a stream has no end; use spark.read, or .trigger(availableNow=True)")
        if options.store_path:
            raise UserError(
                "option storePath: readStream cannot read a store directory; use spark.read, or leave out storePath and"
                " give nameserver to read a stream from brokers"
            )
        if options.pushdown:
            raise UserError("option pushdown: streams have none; choose topics, queues and tags with options")
        return options

    @classmethod
    def _hint(cls, name: str, known: list[str]) -> str:
        if name.lower() == "kafka.bootstrap.servers":
            return "name the NameServers with nameserver"
        return super()._hint(name, known)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """As for every class of options; a store directory has no use for options of connections."""
        options = super().parse(given)
        options.check_store(cls.aliases.get(name.lower(), name.lower()) for name in given)
        return options

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, each once."""
        if self.assign:
            return tuple(dict.fromkeys(queue.topic for queue in self.assigned))
        return tuple(dict.fromkeys(name.strip() for name in self.topic.split(",") if name.strip()))

    @property
    def wanted_start(self) -> Wanted:
        return parse_offsets(self.starting_offsets, "startingOffsets", STARTING_WORDS)

    @property
    def wanted_end(self) -> Wanted:
        return parse_offsets(self.ending_offsets, "endingOffsets", ENDING_WORDS)

    @property
    def when_lost(self) -> str:
        """What to do when messages that should be read do not exist."""
        return self.on_data_loss or (FAIL if self.fail_on_data_loss else SKIP)

    def check(self) -> None:
        """Raise UserError for combinations of options that are invalid."""
        self.check_selection(self.topic)
        super().check()
        if self.when_lost == REPORT and not self.lost_ranges_path:
            raise UserError("option onDataLoss: report needs lostRangesPath, the directory for the table")
        self.check_limits()
        if self.wanted_start == COMMITTED:
            self._check_group("startingOffsets=committed")
        if self.commit_offsets:
            self._check_group("commitOffsets=true")
        check_order(self.wanted_start, self.wanted_end)

    def _check_group(self, reason: str) -> None:
        """Raise UserError unless the user names the group whose offsets are used."""
        if self.consumer_group == ANY_GROUP:
            raise UserError(f"option consumerGroup: {reason} needs it; name the group, one of this job only")
