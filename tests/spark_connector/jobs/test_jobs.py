"""Both jobs as programs, once each, with two clusters over real sockets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.daemons import ROOT
from sdk import Message
from sdk.blocking import Producer
from sdk.testing import Cluster

pytestmark = pytest.mark.spark

COUNT = 300


# One process, so that both share a JVM.
BOTH = """
import json, sys
from spark_connector.jobs import audit_topic, copy_topic
for job, arguments in zip((copy_topic, audit_topic), json.loads(sys.argv[1]), strict=True):
    job.main.main(arguments, standalone_mode=False)
    print("=" * 9)
"""
CONF = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 --driver-memory 512m pyspark-shell"
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": CONF}


def test_a_topic_is_copied_and_audited(tmp_path: Path) -> None:
    with Cluster() as source, Cluster() as target, Producer(source.nameserver) as producer:
        source.create_topic("flights", queues=2)
        target.create_topic("copy", queues=2)
        producer.send_many(
            "flights", [Message("flights", b"%d" % n, tags="t", properties={"n": str(n)}) for n in range(COUNT)]
        )
        to = ["--to-nameserver", target.nameserver, "--to-topic", "copy", "--progress", str(tmp_path / "progress")]
        copy = ["--from-nameserver", source.nameserver, "--topic", "flights", *to, "--json"]
        audit = ["--nameserver", target.nameserver, "--topic", "copy", "--json"]
        command = [sys.executable, "-c", BOTH, json.dumps([copy, audit])]
        run = subprocess.run(command, capture_output=True, cwd=ROOT, env={**os.environ, **LOOPBACK})
    assert run.returncode == 0, run.stderr.decode()
    copied, audited, _ = run.stdout.decode().split("=" * 9)
    queues = json.loads(copied)
    assert sum(one["copied"] for one in queues) == sum(one["target_count"] for one in queues) == COUNT
    assert all(one["source_crc"] == one["target_crc"] for one in queues)
    assert sum(one["messages"] for one in json.loads(audited)) == COUNT
