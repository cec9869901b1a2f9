"""The options of ``.option(...)``, checked before anything is read.

Spark passes options as text, with names in upper or lower case. An unknown option is an error that suggests the nearest
one: if it were ignored, a misspelt option could make the job read the wrong messages.
Neighbours: mqcommon/option_fields.py (declaration), docs/spark.md (the table is generated from here).
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

from mqcommon.errors import ConfigError, UserError
from mqcommon.option_fields import option, options_of, parse_value
from sdk import Credentials, Tls
from sdk.credentials import credentials_in, read_credentials
from spark_connector.offsets import EARLIEST, LATEST, Wanted, check_order, parse_offsets

STARTING_WORDS: Mapping[str, int] = MappingProxyType({"earliest": EARLIEST, "latest": LATEST})
NAMESRV_ADDR = "NAMESRV_ADDR"  # read on the driver, so that executors need not have it
ENDING_WORDS: Mapping[str, int] = MappingProxyType({"latest": LATEST})


@dataclass(frozen=True)
class ReadOptions:
    """Options of ``spark.read.format("rocketmq")``."""

    nameserver: str = option("", "NameServers, host:port, several separated by `;`; without it $NAMESRV_ADDR")
    topic: str = option("", "topics to read, separated by commas")
    starting_offsets: str = option("earliest", "where to start: `earliest`, `latest` or JSON, queue by queue")
    ending_offsets: str = option("latest", "where to end (exclusive): `latest` or JSON, queue by queue")
    starting_timestamp: int = option(
        -1, "start at the first message stored at or after it (overrides startingOffsets; -1: not used)", unit="ms"
    )
    fail_on_data_loss: bool = option(
        True, "fail when messages to be read have been deleted; otherwise log that and go on"
    )
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
    retry_interval_ms: int = option(200, "pause before the first retry; doubles each time", unit="ms", minimum=0)
    consumer_group: str = option(
        "spark-rocketmq", "group in the brokers' statistics of reads; its offsets are neither used nor changed"
    )

    # --- who reads; also from the environment and a file of the driver, which executors need not have
    access_key: str = option("", "access key with which requests are signed; without it $ROCKETMQ_ACCESS_KEY")
    secret_key: str = option("", "its secret key; without it $ROCKETMQ_SECRET_KEY", secret=True)
    security_token: str = option("", "token of temporary credentials, if they have one", secret=True)
    credentials_file: str = option("", "file of the driver with `accessKey` and `secretKey`, mode 0600")

    # --- encryption; the files must be on all executors, too
    tls: bool = option(False, "connections are encrypted; without `tlsCaFile` the CAs of the system are trusted")
    tls_ca_file: str = option("", "CAs (PEM) of the servers' certificates")
    tls_cert_file: str = option("", "certificate (PEM) of the reader, for servers that want one")
    tls_key_file: str = option("", "its key")
    tls_key_password: str = option("", "the password of the key, if it has one", secret=True)
    tls_check_name: bool = option(True, "a server's certificate must have the name or address that was asked for")

    aliases: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"namesrvaddr": "nameserver", "nameserver.addr": "nameserver", "namesrv.addr": "nameserver"}
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse the user's options; UserError when one is unknown or invalid."""
        known = {o.key.lower(): o for o in options_of(cls)}
        values: dict[str, Any] = {"nameserver": os.environ.get(NAMESRV_ADDR, "")}
        for name, text in given.items():
            o = known.get(cls.aliases.get(name.lower(), name.lower()))
            if o is None:
                raise UserError(f"option {name} is unknown; {_hint(name, [o.key for o in known.values()])}")
            try:
                values[o.name] = parse_value(o, text, "")
            except ConfigError as error:
                raise UserError(f"option {error}") from None
        options = cls(**values)
        options.check()
        if (found := options.credentials or _elsewhere(options.credentials_file)) is not None:
            return replace(
                options,
                access_key=found.access_key,
                secret_key=found.secret_key,
                security_token=found.security_token,
            )
        return options

    @property
    def credentials(self) -> Credentials | None:
        """What requests are signed with; None: they are not."""
        return Credentials(self.access_key, self.secret_key, self.security_token) if self.access_key else None

    @property
    def encryption(self) -> Tls | None:
        """How connections are encrypted; None: they are not."""
        if not self.tls:
            return None
        return Tls(
            ca_file=self.tls_ca_file or None,
            cert_file=self.tls_cert_file or None,
            key_file=self.tls_key_file or None,
            key_password=self.tls_key_password or None,
            check_name=self.tls_check_name,
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.topic.split(",") if name.strip()))

    @property
    def wanted_start(self) -> Wanted:
        return parse_offsets(self.starting_offsets, "startingOffsets", STARTING_WORDS)

    @property
    def wanted_end(self) -> Wanted:
        return parse_offsets(self.ending_offsets, "endingOffsets", ENDING_WORDS)

    def check(self) -> None:
        """Raise UserError for combinations of options that are invalid."""
        if not self.topics:
            raise UserError('no topic is given; use .option("topic", "name"), or several names separated by commas')
        if bool(self.access_key) != bool(self.secret_key):
            raise UserError("options accessKey and secretKey must both be set, or none of them")
        if self.access_key and self.credentials_file:
            raise UserError("option credentialsFile cannot be given together with accessKey and secretKey")
        if not self.tls and (self.tls_ca_file or self.tls_cert_file or self.tls_key_file):
            raise UserError("options tlsCaFile, tlsCertFile and tlsKeyFile need tls=true")
        check_order(self.wanted_start, self.wanted_end)


def _elsewhere(file: str) -> Credentials | None:
    """The credentials in ``file``, else those in the environment."""
    return read_credentials(file) if file else credentials_in(os.environ)


def _hint(name: str, known: list[str]) -> str:
    lower = {key.lower(): key for key in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    if near:
        return f"did you mean {lower[near[0]]}?"
    if name.lower() == "path":
        return 'use .option("topic", ...).load() without a path'
    return f"options are {', '.join(known)}"
