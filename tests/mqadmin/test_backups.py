"""mqadmin backup and broker restore, as their users type them."""

import json
from pathlib import Path

import trio
from click.testing import CliRunner, Result

from skylark import Admin, Message, Producer, PullConsumer
from skylark.broker.cli import main as broker
from skylark.mqadmin.cli import mqadmin
from skylark.mqcommon.message.queue import MessageQueue
from tests.support.in_process import Servers, servers

QUEUE = MessageQueue("orders", "broker-a", 0)


async def run(*words: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, words))


async def bodies(at: Servers) -> list[bytes]:
    async with PullConsumer(at.nameserver) as consumer:
        return [message.body for message in (await consumer.pull(QUEUE, 0)).messages]


async def test_what_was_backed_up_is_restored_and_each_mistake_is_one_line(tmp_path: Path) -> None:
    async with servers(tmp_path / "old", {"orders": 1}) as at:
        async with Producer(at.nameserver) as producer:
            await producer.send(Message("orders", b"one"))
            done = await run("backup", "-b", at.broker, "monday")
            await producer.send(Message("orders", b"two"))
        backup = tmp_path / "old/store/backup/monday"
        assert done.exit_code == 0 and f"{at.broker}: {backup}: log from 0 to " in done.stdout
        assert "copy it to another machine, then remove it" in done.stdout
        again = await run("backup", "-c", "DefaultCluster", "-n", at.nameserver, "monday", "--output", "json")
        assert again.exit_code == 1 and json.loads(again.stdout) == []
        assert "exists already: give another name" in again.stderr and again.stderr.count("\n") == 1
        wrong = await run("backup", "-b", at.broker, "/mnt/monday")
        assert wrong.exit_code == 1 and "is not the name of a backup" in wrong.stderr
    new = tmp_path / "new"
    restored = CliRunner().invoke(broker, ["restore", str(backup), str(new / "store")])
    assert restored.exit_code == 0, restored.output
    assert "backup of broker-a (master, cluster DefaultCluster)" in restored.stdout
    assert "1 records" in restored.stdout and "no damage" in restored.stdout
    assert f"brokerName=broker-a storePathRootDir={new}/store mappedFileSizeCommitLog=1048576" in restored.stdout
    twice = CliRunner().invoke(broker, ["restore", str(backup), str(new / "store")])
    assert twice.exit_code == 1 and "is not empty" in twice.stderr and twice.stderr.count("\n") == 1
    async with servers(new) as at, Admin(at.nameserver) as admin:
        assert await bodies(at) == [b"one"]
        assert (await admin.backup_status(at.broker)).state == ""
