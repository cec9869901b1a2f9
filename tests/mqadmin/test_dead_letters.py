"""resendDlq and exportDlq on a broker of ours."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from click.testing import CliRunner

from skylark import Admin
from skylark.mqadmin.cli import mqadmin
from skylark.sdk.admin import resent_marks
from tests.sdk.admin.dead_lettering import Group, killed
from tests.sdk.consumer.push_cluster import push_cluster
from tests.sdk.fakes import until
from tests.support.in_process import Servers


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    async with push_cluster(tmp_path) as made:
        yield made


async def run(cluster: Servers, *words: str, ends_with: int = 0) -> Any:
    line = [*words, "-n", cluster.nameserver, "--output", "json"]
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, line))
    assert done.exit_code == ends_with, done.output
    return json.loads(done.stdout) if ends_with == 0 else done.stderr


async def test_the_commands(cluster: Servers, tmp_path: Path) -> None:
    ids = await killed(cluster, b"tea", b"cake")
    shown = await run(cluster, "resendDlq", "-g", "g", "--dry-run", "--reason", "cake")
    assert (shown["chosen"], shown["read"], shown["sent"]) == (1, 2, 0)
    (letter,) = shown["letters"]
    assert (letter["topic"], letter["msgId"], letter["deliveries"]) == ("one", ids[1], 1)
    assert letter["failReason"].startswith("ValueError: no cake for me")
    assert (await run(cluster, "resendDlq", "-g", "g", "--to", "2001-01-01T00:00:00Z"))["sent"] == 0
    assert (await run(cluster, "resendDlq", "-g", "g", "--id", ids[0], "--rate", "1000"))["sent"] == 1
    assert "has no dead letter nothing" in await run(cluster, "resendDlq", "-g", "g", "--id", "nothing", ends_with=1)
    assert (await run(cluster, "resendDlq", "-g", "g", "--id", ids[0]))["skipped"] == 1
    assert (await run(cluster, "resendDlq", "-g", "g"))["sent"] == 1
    assert (await run(cluster, "resendDlq", "-g", "g"))["sent"] == 0
    assert (await run(cluster, "resendDlq", "-g", "g", "--id", ids[0], "--again"))["sent"] == 1
    assert "no broker knows group nobody" in await run(cluster, "resendDlq", "-g", "nobody", ends_with=1)
    file = tmp_path / "dead.parquet"
    done = await run(cluster, "exportDlq", "-g", "g", "-f", str(file), "--from", "2001-01-01T00:00:00Z")
    assert done["written"] == 2 and pq.read_table(file).num_rows == 2
    group = Group(cluster)
    async with group.consumer:
        await until(lambda: len(group.got) == 3)
    assert group.bodies() == [b"cake", b"tea", b"tea"]


async def test_the_tables_of_the_commands(cluster: Servers, tmp_path: Path) -> None:
    await killed(cluster, b"tea")

    async def lines(*words: str) -> list[str]:
        every = [*words, "-n", cluster.nameserver]
        done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, every))
        assert done.exit_code == 0, done.output
        return list(done.stdout.splitlines())

    head, row, count = await lines("resendDlq", "-g", "g", "--dry-run")
    assert head.split()[:3] == ["#Topic", "#MsgId", "#Deliveries"] and "ValueError: no tea for me" in row
    assert count == "1 of 1 dead letters of g would be sent again"
    assert await lines("resendDlq", "-g", "g") == ["1 of 1 dead letters of g were sent again"]
    file = str(tmp_path / "dead.jsonl")
    assert await lines("exportDlq", "-g", "g", "-f", file) == [f"1 of 1 dead letters of g are in {file}"]


async def test_a_broker_that_cannot_remember_is_named(cluster: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    # As of RocketMQ: it has no such topic, and no client can make one.
    monkeypatch.setattr(resent_marks, "DLQ_RESENT_TOPIC", "rmq_sys_OF_NO_BROKER")
    (tea,) = await killed(cluster, b"tea")
    async with Admin(cluster.nameserver) as admin:
        assert (await admin.resend_dead_letters("g", ids=[tea])).forgetful == ["broker-a"]
        await admin.resend_dead_letters("g")
    shown = await trio.to_thread.run_sync(
        lambda: CliRunner().invoke(mqadmin, ["resendDlq", "-g", "g", "--id", tea, "-n", cluster.nameserver])
    )
    assert "left out, since sent again before: 1" in shown.output and "broker broker-a cannot remember" in shown.output
