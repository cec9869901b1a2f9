"""The options of ``spark.read`` and ``spark.readStream``, checked before anything is read.

Both have all options, since Spark asks for the columns before it says which of the two it is. Names of Kafka's source
and of rocketmq-spark are accepted where the meaning is the same: `ALIASES`.
Neighbours: connection.py (parsing, and the options that writing has, too), docs/guides/spark.md (its table is made
from here), reading/planning.py (topics, queues and times), stream/offsets.py (limits).
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from skylark.mqcommon.errors import InvalidArgument, RequestRefused, UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import check_topic
from skylark.mqcommon.options.fields import BYTES, option, options_of
from skylark.sdk.consumer.expression import Sql, subscription_to
from skylark.spark_connector.offsets import COMMITTED, EARLIEST, LATEST, Wanted, check_order, parse_offsets
from skylark.spark_connector.options.connection import ConnectionOptions
from skylark.spark_connector.options.formats import FORMAT_HELP, FORMATS, MESSAGE_HELP, check_format
from skylark.spark_connector.parallelism import parallelism
from skylark.spark_connector.schema import EXTERNALS, KAFKA, ROCKETMQ
from skylark.spark_connector.tasks import TASKS_PER_CORE, Splitting

TAG, SQL92 = "TAG", "SQL92"
TIMES_LIKE = '{"topic":{"broker":{"0":1700000000000}}}'
QUEUES_LIKE = '{"topic":{"broker":[0,1]}}'

# Lower-case names of other sources, and ours.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "subscribe": "topic",
        "subscribepattern": "topicpattern",
        "includeheaders": "includeproperties",
        "kafka.group.id": "consumergroup",
        "kafkaconsumer.polltimeoutms": "pulltimeoutms",
        "fetchoffset.numretries": "numretries",
        "fetchoffset.retryintervalms": "retryintervalms",
        "group": "consumergroup",
        "consumer.group": "consumergroup",
        "consumer.topic": "topic",
        "consumer.tag": "subexpression",
        "pull.max.batch.size": "pullbatchsize",
        "pull.timeout.ms": "pulltimeoutms",
    }
)
STARTING_WORDS: Mapping[str, int] = MappingProxyType({"earliest": EARLIEST, "latest": LATEST, "committed": COMMITTED})
ENDING_WORDS: Mapping[str, int] = MappingProxyType({"latest": LATEST})
# What to do when messages that should be read do not exist.
FAIL, SKIP, REPORT = "fail", "skip", "report"
# What to do with messages whose body is no value of valueFormat.
NULL, DEAD_LETTER = "null", "deadLetter"
BAD_ROWS_SUFFIX = "-bad-rows"
# What a stream does while a broker is away.
HOLD, CONTINUE = "hold", "continue"
ANY_GROUP = "spark-rocketmq"
# Besides the options of connections: how brokers are asked.
_ASKING = (
    *("missingbrokers", "brokers", "localstorepath"),
    *("pullbatchsize", "pulltimeoutms", "numretries", "retryintervalms", "consumergroup"),
)
# The options of `_ASKING` that a bucket has no use for.
_ASKING_BROKERS = tuple(name for name in _ASKING if name != "pulltimeoutms")
# The options that only streams have, besides options whose name ends with PerTrigger.
_OF_STREAMS = ("maxtriggerdelay", "commitoffsets", "discoveryintervalms", "onbrokeraway", "brokerawayholdms")
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,15})\s*([a-z]*)", re.ASCII)


@dataclass(frozen=True)
class ReadOptions(ConnectionOptions):
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
    max_tasks: int = option(
        0,
        "most tasks of a read or a micro-batch; a task reads several queues, one after the other (0: two for each core"
        " of the cluster)",
        minimum=0,
    )
    bytes_per_task: int = option(
        8 * 1024 * 1024,
        "how much a task reads, as brokers store it, by the mean size of messages: where there is less to read there"
        " are fewer tasks than maxTasks (0: always maxTasks)",
        unit=BYTES,
        minimum=0,
    )
    min_rows_per_task: int = option(
        0,
        "split queues that have more rows than a task's share, into parts of at least this many rows (0: a queue is"
        " read by one task; default with `tierPath`: 100000)",
        minimum=0,
    )
    min_partitions: int = option(
        0, "split queues to get at least this many partitions, even more than maxTasks (0: not used)", minimum=0
    )
    max_records_per_partition: int = option(
        0,
        "split queues into partitions of at most this many rows, even more than maxTasks (0: no limit)",
        minimum=0,
    )
    max_records_per_batch: int = option(10_000, "rows handed to Spark at once", minimum=1, maximum=1_000_000)
    pull_batch_size: int = option(
        8_192, "messages per pull; brokers may have lower limits", minimum=1, maximum=1_000_000
    )
    pull_timeout_ms: int = option(
        10_000,
        "how long to wait for an answer, and for a message that should be there (default with `tierPath`: 30000)",
        unit="ms",
        minimum=1,
    )
    num_retries: int = option(3, "retries when a broker does not answer", minimum=0, maximum=100)
    retry_interval_ms: int = option(
        200, "pause before the first retry; doubles each time, up to 10 s", unit="ms", minimum=0
    )
    broker_wait_ms: int = option(
        0,
        "how long planning and tasks wait for brokers and NameServers, or a bucket, that are away, before they fail"
        " (default of streams: 600000; with `tierPath` otherwise 60000)",
        unit="ms",
        minimum=0,
    )
    missing_brokers: str = option(
        FAIL,
        "brokers that have queues of a topic, or may have, and are away when a read is planned: fail, or skip what"
        " they have and log that",
        choices=(FAIL, SKIP),
    )
    brokers: str = option(
        "", "names, separated by commas: brokers that must be there with queues of each topic, else as missingBrokers"
    )
    consumer_group: str = option(
        ANY_GROUP, "group in the brokers' statistics of reads; its offsets are used by `startingOffsets=committed`"
    )

    # --- what is read: topics by pattern, single queues, times, filters, the style of the columns
    topic_pattern: str = option(
        "", "instead of `topic`: a regular expression for whole names of topics; it never matches system topics"
    )
    assign: str = option("", f"instead of `topic`: queues to read, JSON like `{QUEUES_LIKE}`")
    sub_expression: str = option(
        "*", "read only messages with this tag or one of these tags, or with SQL92 a condition"
    )
    expression_type: str = option(TAG, "what `subExpression` is: TAG or SQL92", choices=(TAG, SQL92))
    starting_offsets_by_timestamp: str = option(
        "", f"start times, queue by queue (overrides startingOffsets): JSON like `{TIMES_LIKE}`"
    )
    starting_offsets_by_timestamp_strategy: str = option(
        "latest",
        "a queue without messages since its start time: `latest` reads none of it, `error` fails",
        choices=("latest", "error"),
    )
    ending_timestamp: int = option(
        -1, "end before the first message stored at or after it (overrides endingOffsets; -1: not used)", unit="ms"
    )
    ending_offsets_by_timestamp: str = option("", "end times, queue by queue (overrides endingOffsets): JSON as above")
    schema_style: str = option(
        ROCKETMQ, "columns: `rocketmq`, `kafka` or `externals` (rocketmq-spark's)", choices=(ROCKETMQ, KAFKA, EXTERNALS)
    )
    pushdown: bool = option(
        False, "filters of the query narrow what is read; needs spark.sql.python.filterPushdown.enabled=true"
    )

    # --- what bodies are
    value_format: str = option("", FORMAT_HELP, choices=FORMATS)
    value_schema: str = option(
        "",
        "of valueFormat. json, cbor: fields as in DDL, `id bigint, name string`; avro: the schema in JSON; protobuf: a"
        " file of `protoc --include_imports --descriptor_set_out`",
    )
    value_message: str = option("", MESSAGE_HELP)
    bad_rows: str = option(
        FAIL,
        "what to do with a message whose body valueFormat cannot decode: fail; give the row with `value` null; or send"
        " the message to badRowsTopic and leave out the row",
        choices=(FAIL, NULL, DEAD_LETTER),
    )
    bad_rows_topic: str = option(
        "", f"topic for badRows=deadLetter; without it the topic's own name and `{BAD_ROWS_SUFFIX}`"
    )

    # --- files in place of pulls, or of brokers
    local_store_path: str = option(
        "",
        "where a task finds this store directory of the broker it reads from, it reads the files and pulls the rest;"
        " `{broker}` in it is the broker's name",
    )
    store_path: str = option(
        "", "instead of asking brokers: read this store directory of a broker, or a copy of it, at this path everywhere"
    )
    broker_name: str = option(
        "", "with `storePath`: the broker's name, for `brokerName` and JSON options; else the directory's name"
    )

    # --- old segments in object storage, in place of brokers
    tier_path: str = option(
        "",
        "instead of asking brokers: read the segments that they have uploaded, by their `tierPath`: `s3://bucket/prefix`,"
        " `gs://bucket/prefix`, `az://container/prefix` or `file:///directory`",
    )
    tier_set: str = option(
        "",
        "with `tierPath`: names, separated by commas, of the brokers whose segments are read; without it all that are"
        " there",
    )

    # --- streams only: limits of micro-batches, discovery, commits
    max_offsets_per_trigger: int = option(0, "streams: most messages of a micro-batch (0: no limit)", minimum=0)
    min_offsets_per_trigger: int = option(
        0, "streams: messages that a micro-batch waits for, up to maxTriggerDelay (0: none)", minimum=0
    )
    max_trigger_delay: str = option(
        "15m", "streams: how long a micro-batch waits for minOffsetsPerTrigger: `90s`, `15m`, `1h`"
    )
    max_bytes_per_trigger: int = option(
        0,
        "streams: most bytes of a micro-batch, as brokers store them, by the mean size of messages (0: no limit)",
        unit=BYTES,
        minimum=0,
    )
    commit_offsets: bool = option(
        False, "streams: commit the offsets of finished micro-batches for consumerGroup; they are never set back"
    )
    discovery_interval_ms: int = option(
        10_000,
        "streams: how often to look for new topics, queues and brokers (0: in each trigger)",
        unit="ms",
        minimum=0,
    )

    on_broker_away: str = option(
        HOLD,
        "streams, while a broker is away: hold the whole stream, so that a watermark does not pass the messages of that"
        " broker, or continue with the others",
        choices=(HOLD, CONTINUE),
    )
    broker_away_hold_ms: int = option(
        120_000,
        "streams: how long `onBrokerAway=hold` holds; then the stream continues, and says so",
        unit="ms",
        minimum=0,
    )

    #: Defaults of streams, which have time to wait.
    stream_defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"startingoffsets": "latest", "brokerwaitms": "600000"}
    )
    #: Defaults with `tierPath`. A bucket answers later than a broker, and a queue may have years of messages.
    tier_defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"pulltimeoutms": "30000", "brokerwaitms": "60000", "minrowspertask": "100000"}
    )
    path_hint: ClassVar[str] = (
        'use .option("topic", ...).load() without a path; a store directory is given by .option("storePath", ...)'
    )
    aliases: ClassVar[Mapping[str, str]] = MappingProxyType({**ConnectionOptions.aliases, **ALIASES})

    @classmethod
    def of_stream(cls, given: Mapping[str, str]) -> Self:
        """Parse the user's options of a stream; UserError when one is unknown, invalid, or of batches only."""
        # Spark gives option names in lower case or as the user wrote them, so they are compared in lower case.
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
        """Parse the user's options; with a store directory or a bucket, options of connections are refused."""
        names = {cls.aliases.get(name.lower(), name.lower()): text for name, text in given.items()}
        defaults = cls.tier_defaults if names.get("tierpath") else {}
        options = super().parse({**{name: text for name, text in defaults.items() if name not in names}, **given})
        options.check_source(names)
        return options

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, each once."""
        if self.assign:
            return tuple(dict.fromkeys(queue.topic for queue in self.assigned))
        return tuple(dict.fromkeys(name.strip() for name in self.topic.split(",") if name.strip()))

    @property
    def required(self) -> tuple[str, ...]:
        """The brokers that must be present, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.brokers.split(",") if name.strip()))

    @property
    def most_tasks(self) -> int:
        """The most tasks, unless other options want more."""
        return self.max_tasks or TASKS_PER_CORE * parallelism()

    @property
    def splitting(self) -> Splitting:
        """When queues are split into parts."""
        return Splitting(self.min_partitions, self.max_records_per_partition, self.min_rows_per_task)

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
        check_format(self)
        self._check_bad_rows()

    def _check_bad_rows(self) -> None:
        if self.bad_rows != FAIL and not self.value_format:
            raise UserError(f"option badRows: {self.bad_rows} needs valueFormat: without it no body is decoded")
        if self.bad_rows_topic and self.bad_rows != DEAD_LETTER:
            raise UserError("option badRowsTopic needs badRows=deadLetter")
        if self.bad_rows != DEAD_LETTER:
            return
        if files := "storePath" if self.store_path else "tierPath" if self.tier_path else "":
            raise UserError(
                f"option badRows: deadLetter sends messages, and {files} reads without a broker; give null or fail"
            )
        if self.bad_rows_topic:
            try:
                check_topic(self.bad_rows_topic)
            except RequestRefused as refused:
                raise UserError(f"option badRowsTopic: {refused.remark}") from None
        # Bad rows of a stream would come back to it for ever.
        if self.topic_pattern:
            if not self.bad_rows_topic or re.fullmatch(self.topic_pattern, self.bad_rows_topic):
                raise UserError(
                    "option badRowsTopic: badRows=deadLetter with topicPattern needs a name that the pattern does not"
                    " match"
                )
        elif read_too := {self.dead_letter_topic(topic) for topic in self.topics}.intersection(self.topics):
            raise UserError(f"option badRowsTopic: {' and '.join(sorted(read_too))} is read, too; name another topic")

    def dead_letter_topic(self, topic: str) -> str:
        """Where messages of ``topic`` go that cannot be decoded."""
        return self.bad_rows_topic or topic + BAD_ROWS_SUFFIX

    def _check_group(self, reason: str) -> None:
        """Raise UserError unless the user names the group whose offsets are used."""
        if self.consumer_group == ANY_GROUP:
            raise UserError(f"option consumerGroup: {reason} needs it; name the group, one of this job only")

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues of ``assign``."""
        return tuple(_queues_in(self.assign, "assign", QUEUES_LIKE, _listed_queues)) if self.assign else ()

    @property
    def start_times(self) -> Mapping[MessageQueue, int]:
        """The start time of each queue; empty when none is given."""
        return _times(self.starting_offsets_by_timestamp, "startingOffsetsByTimestamp")

    @property
    def end_times(self) -> Mapping[MessageQueue, int]:
        """The end time of each queue; empty when none is given."""
        return _times(self.ending_offsets_by_timestamp, "endingOffsetsByTimestamp")

    @property
    def expression(self) -> str | Sql:
        """The filter, as consumers take it."""
        return Sql(self.sub_expression) if self.expression_type == SQL92 else self.sub_expression

    @property
    def tags(self) -> frozenset[str]:
        """The tags that are read; empty without a filter or with an SQL92 condition."""
        return frozenset(subscription_to("", self.expression).tags_set) if self.expression_type == TAG else frozenset()

    @property
    def filters(self) -> bool:
        """Whether brokers leave out messages."""
        return self.expression_type == SQL92 or bool(self.tags)

    def check_selection(self, topic: str) -> None:
        """Raise UserError unless exactly one of topic, pattern and assignment is given, and all can be read."""
        given = {"topic": topic.strip(" ,"), "topicPattern": self.topic_pattern, "assign": self.assign}
        named = [name for name, text in given.items() if text]
        if not named:
            raise UserError(
                'no topic is given; use .option("topic", "name"), or several names separated by commas;'
                " or topicPattern, or assign"
            )
        if len(named) > 1:
            raise UserError(f"options {' and '.join(named)} exclude each other; give one of them")
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise UserError(f"option topicPattern: {self.topic_pattern!r} is no regular expression: {error}") from None
        if self.assign and not self.assigned:
            raise UserError(f"option assign: no queue is named; give JSON like {QUEUES_LIKE}")
        self._check_filter()
        for times in (self.start_times, self.end_times):
            for queue, time_ms in times.items():
                if time_ms < 0:
                    raise UserError(f"the time {time_ms} of {queue} is negative; give milliseconds since 1970")

    def _check_filter(self) -> None:
        # Reading these properties parses them: the driver must report a mistake, before tasks start.
        try:
            found = self.tags
            _ = self.expression
        except InvalidArgument as error:
            raise UserError(f"option subExpression: {error}") from None
        except ValueError as error:
            raise UserError(f"option subExpression: {error}; give *, or tags separated by ||") from None
        # Most likely the user meant a condition in SQL. As a tag the text is legal, and no message has it.
        if self.expression_type == TAG and any(re.search(r"[=<>'()]|\s", tag) for tag in found):
            raise UserError(
                f"option subExpression: {self.sub_expression!r} has no form of tags; for an SQL92 condition set"
                " expressionType=SQL92"
            )

    @property
    def directory(self) -> str:
        """The absolute path of the store."""
        return os.path.abspath(os.path.expanduser(self.store_path))

    @property
    def local_directory(self) -> str:
        """The absolute path of `localStorePath`."""
        return os.path.abspath(os.path.expanduser(self.local_store_path))

    @property
    def name_of_broker(self) -> str:
        """The name of the broker whose store it is."""
        return self.broker_name or os.path.basename(self.directory)

    @property
    def tier_sets(self) -> tuple[str, ...]:
        """The brokers whose segments are read, each once; empty: all that are there."""
        return tuple(dict.fromkeys(name.strip() for name in self.tier_set.split(",") if name.strip()))

    def check_source(self, given: Iterable[str]) -> None:
        """Raise UserError if the options ``given`` (lower-case keys) do not fit what is read: brokers or files."""
        names = set(given)
        if self.store_path and self.tier_path:
            raise UserError("options storePath and tierPath exclude each other; give one of them")
        if self.broker_name and not self.store_path:
            raise UserError("option brokerName is for storePath only; read single brokers with option assign")
        if self.tier_set and not self.tier_path:
            raise UserError("option tierSet is for tierPath only; read single brokers with option assign")
        if "://" in self.store_path:
            raise UserError(
                f"option storePath: {self.store_path!r} is a URL; give the path of a local or mounted directory, or"
                " give the tierPath of brokers as tierPath"
            )
        if self.store_path:
            self._check_without_brokers(names, "storePath reads a directory without one", "storePath", _ASKING)
        elif self.tier_path:
            why = "tierPath reads a bucket without one"
            self._check_without_brokers(names, why, "tierPath", (*_ASKING_BROKERS, "commitoffsets"))

    def _check_without_brokers(self, given: Collection[str], why: str, source: str, asking: Collection[str]) -> None:
        # Options that would have no effect are refused: their user expects an effect.
        refused = {one.key.lower(): one.key for one in options_of(ConnectionOptions)}
        refused |= {one.key.lower(): one.key for one in options_of(type(self)) if one.key.lower() in asking}
        useless = [key for name, key in refused.items() if name in given]
        if useless:
            raise UserError(
                f"option {useless[0]} is for brokers, and {why}; leave out {' and '.join(useless)}, or leave out"
                f" {source} to read from brokers"
            )
        if "expressiontype" in given and self.expression_type == SQL92:
            raise UserError(
                f"option expressionType: SQL92 conditions are evaluated by brokers, and {why}; give tags, or filter the"
                " DataFrame by its columns with where(...)"
            )

    @property
    def max_trigger_delay_ms(self) -> int:
        """The longest wait for enough messages."""
        found = _DURATION.fullmatch(self.max_trigger_delay.strip().lower())
        unit_ms = _UNITS_MS.get(found[2]) if found else None
        if found is None or unit_ms is None:
            raise UserError(
                f"option maxTriggerDelay: {self.max_trigger_delay!r} is no duration; give a number with ms, s, m, h"
                " or d"
            )
        return int(found[1]) * unit_ms

    @property
    def has_limits(self) -> bool:
        """Whether a micro-batch may leave messages for the next one."""
        return bool(self.max_offsets_per_trigger or self.min_offsets_per_trigger or self.max_bytes_per_trigger)

    def check_limits(self) -> None:
        """Raise UserError for limits that are invalid."""
        _ = self.max_trigger_delay_ms
        if 0 < self.max_offsets_per_trigger < self.min_offsets_per_trigger:
            raise UserError(
                f"option minOffsetsPerTrigger: {self.min_offsets_per_trigger} is more than maxOffsetsPerTrigger,"
                f" {self.max_offsets_per_trigger}"
            )


def only_of_streams(given: Iterable[str]) -> list[str]:
    """The names of options that only streams have."""
    return [name for name in given if name.lower().endswith("pertrigger") or name.lower() in _OF_STREAMS]


def _times(text: str, name: str) -> Mapping[MessageQueue, int]:
    return dict(_queues_in(text, name, TIMES_LIKE, _timed_queues)) if text else {}


def _queues_in(text: str, name: str, like: str, leaves: Callable[[str, str, Any], list[Any]]) -> list[Any]:
    """The results of ``leaves`` for each topic, broker and the value below them."""
    try:
        tree = json.loads(text)
        return [
            leaf
            for topic, brokers in tree.items()
            for broker, below in brokers.items()
            for leaf in leaves(topic, broker, below)
        ]
    except (AttributeError, TypeError, ValueError):  # ValueError: no JSON, or no numbers
        raise UserError(f"option {name}: {text!r} has the wrong structure; give JSON like {like}") from None


def _listed_queues(topic: str, broker: str, below: Any) -> list[MessageQueue]:
    if not isinstance(below, list) or any(type(queue_id) is not int or queue_id < 0 for queue_id in below):
        raise ValueError
    return [MessageQueue(topic, broker, queue_id) for queue_id in dict.fromkeys(below)]


def _timed_queues(topic: str, broker: str, below: Any) -> list[tuple[MessageQueue, int]]:
    if any(type(time_ms) is not int for time_ms in below.values()):
        raise ValueError
    return [(MessageQueue(topic, broker, int(queue_id)), time_ms) for queue_id, time_ms in below.items()]
