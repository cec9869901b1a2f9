"""``python -m tests.support.without_extra``: what users read when the packages of an extra are missing.

Prints a JSON object for each feature of FEATURES: the extra, the feature, and the text of the error. Each extra has a
process of its own, forked from this one, in which the packages that the extra brings cannot be imported.
"""

import configparser
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from types import MappingProxyType, SimpleNamespace
from typing import Any

import click
import trio
from click.testing import CliRunner

from scripts.daemons import ROOT
from scripts.demo.flights import flight_messages
from skylark import MessageQueue, Producer, PullConsumer, PushConsumer
from skylark.broker.cli import main as broker
from skylark.broker.wiring.wiring import _tiered
from skylark.mqadmin.cli import mqadmin
from skylark.mqcommon.metrics.options import HealthOptions, MetricsOptions
from skylark.mqcommon.tier.opening import open_bucket
from skylark.mqcommon.yaml_documents import parse_yaml
from skylark.mqconsole.cli import main as mqconsole
from skylark.mqproxy.cli import main as mqproxy
from skylark.remoting.metrics.export import Exporter
from skylark.remoting.metrics.health import Health
from skylark.remoting.net.tls.authority import make_certificates
from skylark.remoting.net.tls.contexts import self_signed
from skylark.sdk.admin.dead_letter_files import format_of

ADDRESS = "127.0.0.1:1"
#: Extras whose features users get without their packages, too: a broker without numpy and isal is slower, and the types
#: of msgspec and pydantic are the user's own.
SILENT = ("fast", "values")
#: Extras of those who work on Skylark itself.
OF_DEVELOPERS = ("test", "test-fast", "lint", "bench", "docs", "release")


def command(run: click.Command, *arguments: str) -> Callable[[], None]:
    """Run a command in this process; SystemExit has what it printed."""

    def call() -> None:
        raise SystemExit(CliRunner().invoke(run, arguments).output)

    return call


def module(name: str) -> Callable[[], object]:
    return lambda: import_module(name)


def health(options: HealthOptions) -> Health:
    return Health(options, lambda: "")


def metrics(how: str) -> Callable[[], None]:
    options = MetricsOptions(metrics_exporter_type=how, metrics_prom_exporter_port=0)
    unused: Any = None
    return lambda: trio.run(Exporter(options, [], unused, health(HealthOptions()), unused).run)


def a_tier() -> None:
    unused: Any = None
    core: Any = SimpleNamespace(options=SimpleNamespace(tier_path="file:///x"))
    _tiered(core, unused, unused)


async def arrow_stream() -> None:
    async with PullConsumer(ADDRESS, start_timeout_ms=None) as consumer:
        consumer.arrow(MessageQueue("t", "b", 0), 0)


#: Extra → what needs it → a call that fails without it.
FEATURES: Mapping[str, Mapping[str, Callable[[], object]]] = MappingProxyType(
    {
        "arrow": {
            "arrow_handler": lambda: PushConsumer(
                ADDRESS, group="g", subscriptions={"t": "*"}, arrow_handler=lambda batch: None
            ),
            "Parquet": lambda: format_of("letters.parquet", None),
            "stream": lambda: trio.run(arrow_stream),
        },
        "spark": {"source": module("skylark.spark"), "finder": module("pyspark_rocketmq")},
        "formats": {
            "avro": module("skylark.spark_connector.formats.avro_format"),
            "protobuf": module("skylark.spark_connector.formats.protobuf_format"),
        },
        "acl": {"accounts": lambda: parse_yaml("a: b", "plain_acl.yml")},
        "demo": {"flights": lambda: list(flight_messages("t"))},
        "otel": {"module": module("skylark.integrations.otel")},
        "faststream": {"module": module("skylark.integrations.faststream")},
        "celery": {"module": module("skylark.integrations.kombu")},
        "compression": {
            "lz4": lambda: Producer(ADDRESS, compression="lz4"),
            "zstd": lambda: Producer(ADDRESS, compression="zstd"),
        },
        "tls": {"test mode": self_signed, "cluster": lambda: make_certificates(["localhost"])},
        "proxy": {
            "mqproxy": command(mqproxy, "-n", ADDRESS),
            "enableProxy": command(broker, "--namesrv-addr", ADDRESS, "--enable-proxy", "true"),
            "its process": command(
                broker, "--namesrv-addr", ADDRESS, "--enable-proxy", "true", "--broker-instances", "2"
            ),
        },
        "console": {"mqconsole": command(mqconsole, "-n", ADDRESS)},
        "tier": {
            "bucket": lambda: open_bucket("s3://bucket", timeout_s=1),
            "tierPath": a_tier,
            "tierRestore": command(mqadmin, "tierRestore", "--tierPath", "file:///x", "--set", "b", "--to", "/x/store"),
        },
        "health": {"pages": lambda: trio.run(health(HealthOptions(health_port=0)).run)},
        "metrics": {"pages": metrics("PROM"), "push": metrics("OTLP_GRPC")},
    }
)


def main() -> None:
    """Run the features of each extra without its packages."""
    owners = packages_distributions()
    for extra, features in FEATURES.items():
        if (child := os.fork()) == 0:
            hide(modules_of(extra, owners))
            for name, call in features.items():
                click.echo(json.dumps([extra, name, text_of(call)]))
            os._exit(0)
        os.waitpid(child, 0)


def modules_of(extra: str, owners: Mapping[str, list[str]]) -> set[str]:
    """The modules at the top of the packages that ``extra`` names. ``owners``: the packages of each such module."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.extras_require"][extra].splitlines()
    wanted = {_normal(found[0]) for line in lines if (found := re.match(r"[A-Za-z][\w.-]*", line))}
    return {name for name, packages in owners.items() if wanted & {_normal(package) for package in packages}}


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def hide(modules: set[str]) -> None:
    """Let ``modules`` be found nowhere, as if they were not installed."""
    find = PathFinder.find_spec

    def find_others(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in modules else find(name, path, target)

    PathFinder.find_spec = staticmethod(find_others)  # type: ignore[method-assign, assignment]
    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        del sys.modules[name]


def text_of(call: Callable[[], object]) -> str:
    """The kind and text of the error that ``call`` raises."""
    try:
        call()
    except BaseException as raised:
        error = raised
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    main()
