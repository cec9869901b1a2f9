"""Both jobs, once each, with two clusters over real sockets."""

import json
from pathlib import Path

import click
import pytest
from pyspark.sql import SparkSession

from skylark import Message
from skylark.sdk.blocking import Producer
from skylark.sdk.testing import Cluster
from skylark.spark_connector.jobs import audit_topic, copy_topic

pytestmark = pytest.mark.spark

COUNT = 300


def test_a_topic_is_copied_and_audited(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A job takes the session that is there, and ends it: the other tests need it.
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    with Cluster(brokers=2) as source, Cluster() as target, Producer(source.nameserver) as producer:
        source.create_topic("flights", queues=1)
        target.create_topic("copy", queues=2)
        producer.send_many(
            "flights", [Message("flights", b"%d" % n, tags="t", properties={"n": str(n)}) for n in range(COUNT)]
        )
        to = ["--to-nameserver", target.nameserver, "--to-topic", "copy", "--progress", str(tmp_path / "progress")]
        copy = ["--from-nameserver", source.nameserver, "--topic", "flights", *to, "--json"]
        copy_topic.main.main(copy, standalone_mode=False)
        queues = json.loads(capsys.readouterr().out)
        assert sum(one["copied"] for one in queues) == sum(one["target_count"] for one in queues) == COUNT
        assert all(one["source_crc"] == one["target_crc"] for one in queues)

        audit = ["--nameserver", target.nameserver, "--topic", "copy", "--json"]
        audit_topic.main.main(audit, standalone_mode=False)
        assert sum(one["messages"] for one in json.loads(capsys.readouterr().out)) == COUNT

        # Of half a topic no job says that all is well.
        source.brokers[1].kill()
        with pytest.raises(click.ClickException, match=r"broker-b has queues .*Nothing was copied") as failed:
            copy_topic.main.main(copy, standalone_mode=False)
        assert failed.value.exit_code == 1
        audit = ["--nameserver", source.nameserver, "--topic", "flights", "--option", "retryIntervalMs=1"]
        with pytest.raises(click.ClickException, match="broker-b has queues and is away"):
            audit_topic.main.main(audit, standalone_mode=False)
        audit_topic.main.main([*audit, "--option", "missingBrokers=skip"], standalone_mode=False)
