"""mqadmin against a cluster: looking into queues, cleaning; and Ctrl-C, as a process of its own."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner, Result

from scripts.daemons import BIN
from skylark import Message, Producer
from skylark.mqadmin.cli import mqadmin
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.daemons import in_threads, make_topic

TIMEOUT_S = 60
COUNT = 300
# More than one pull brings.
MANY = 5000


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}


async def run(*arguments: str) -> Result:
    """mqadmin has an event loop of its own, so it runs in a thread."""
    return await trio.to_thread.run_sync(CliRunner().invoke, mqadmin, arguments)


async def printed(*arguments: str) -> str:
    result = await run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), arguments
    return result.stdout


async def document(*arguments: str) -> Any:
    return json.loads(await printed(*arguments, "--output", "json"))


async def fill(nameserver: str, queue: MessageQueue, count: int) -> None:
    def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queue

    async with Producer(nameserver) as producer:
        for number in range(count):
            await producer.send(
                Message(queue.topic, b"%d" % number, tags="odd" if number % 2 else None), selector=choose
            )


async def test_looking_into_queues_and_cleaning(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig("t", 2, 2))
        await fill(cluster.nameserver, MessageQueue("t", "broker-a", 1), COUNT)
        namesrv, broker = ("-n", cluster.nameserver), ("-b", cluster.brokers[0].addr)

        limited = await run("printMsg", "-t", "t", *namesrv, "--limit", "7", "--output", "json")
        assert [one["body"] for one in json.loads(limited.stdout)["messages"]] == [str(number) for number in range(7)]
        assert json.loads(limited.stderr)["warning"].startswith("stopped after 7 messages: --limit N prints more")
        queue = ("-t", "t", "-a", "broker-a", "-i", "1", *namesrv)
        assert (await printed("printMsgByQueue", *queue, "-f", "true")).split() == ["Tag:", "odd", "Count:", "150"]
        assert (await printed("printMsgByQueue", *queue, "-p", "true", "-b", "now")) == ""
        found = await document("searchOffset", "-t", "t", "-s", "now", "-i", "1", "-b", "broker-a", *namesrv)
        assert [(row["lower"], row["upper"]) for row in found["queues"]] == [(COUNT, COUNT - 1)]

        # the address of a broker is enough for these
        entries = await document("queryCq", "-t", "t", "-q", "1", "-i", "290", "-c", "50", *broker)
        assert (len(entries["queueData"]), entries["minQueueIndex"], entries["maxQueueIndex"]) == (10, 0, COUNT)
        [status] = await document("brokerStatus", *broker)
        assert status["table"]["msgPutTotalTodayNow"] == str(COUNT)
        for name in ("deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"):
            assert await printed(name, *broker) == "success\n"
        assert await printed("cleanUnusedTopic", *namesrv, "-c", "DefaultCluster") == "success\n"
        assert len((await document("printMsg", "-t", "t", *namesrv))["messages"]) == COUNT


def interrupted(command: Sequence[str]) -> tuple[bytes, bytes, int]:
    """What a command printed that got Ctrl-C after its first line, and its exit code.

    Nobody reads meanwhile, so it is still printing then if it has more to print than a pipe holds.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as tool:
        assert tool.stdout is not None
        first = tool.stdout.readline()
        tool.send_signal(signal.SIGINT)
        rest, errors = tool.communicate(timeout=TIMEOUT_S)
        return first + rest, errors, tool.returncode


async def test_ctrl_c_ends_it_without_a_word(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig("t", 1, 1))
        async with Producer(cluster.nameserver) as producer:
            await producer.send_many("t", [b"x"] * MANY)
        command = [str(BIN / "mqadmin"), "printMsg", "-t", "t", "-n", cluster.nameserver, "--limit", "0"]
        printed, errors, exit_code = await trio.to_thread.run_sync(interrupted, command)
        assert printed.startswith(b"minOffset=0, maxOffset=")  # more than MANY if a batch was sent twice
        # it may come to an end of what it has pulled
        assert printed.count(b"MSGID: ") < MANY
        assert errors.strip() == b""
        assert exit_code == 130
