"""The official C++ client goes on while its topic shrinks and a broker is drained; it asks for routes every 30 s.

Also while a broker and the NameServer are killed under the command: then sends may fail until the broker is back.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.daemons import Daemon
from skylark import ConsumeFrom, MessageExt, PushConsumer, TopicConfig
from skylark.mqadmin.commands.shrinking import SETTLE_S
from tests.interop import cpp
from tests.support.daemons import Cluster, make_topic, running
from tests.support.waiting import until
from tests.support.warm_daemons import warm

TOPIC = "cpp-shrinks"
PAUSE_S = 0.1
# Sends for as long as a command takes, and then some.
SENDS = [{"how": "sync", "topic": TOPIC, "body": str(number)} for number in range(int((SETTLE_S + 20) / PAUSE_S))]


COMMANDS = pytest.mark.parametrize(
    "words",
    [("shrinkTopic", "-t", TOPIC, "-c", "DefaultCluster", "-w", "1"), ("drain", "-b", "broker-a")],
    ids=["shrinkTopic", "drain"],
)


@pytest.mark.nightly
@COMMANDS
async def test_no_send_fails_and_all_is_consumed(tmp_path: Path, words: tuple[str, ...]) -> None:
    results = await run_under_load(tmp_path, words, lambda cluster: None)
    assert [result and result["status"] for result in results] == ["OK"] * len(SENDS)


@pytest.mark.nightly
@COMMANDS
async def test_what_is_acknowledged_is_consumed_though_servers_die(
    tmp_path: Path, words: tuple[str, ...], seed: int
) -> None:
    def kill(cluster: Cluster) -> Daemon:
        return Random(seed).choice([*cluster.namesrvs, *cluster.brokers])

    results = await run_under_load(tmp_path, words, kill)
    # A failed send was retried at the other broker or told to the program; in the end all go well.
    assert [result and result["status"] for result in results[-50:]] == ["OK"] * 50
    assert sum(result is None for result in results) < len(SENDS) // 10


async def run_under_load(
    home: Path, words: tuple[str, ...], victim: Callable[[Cluster], Daemon | None]
) -> list[cpp.Described | None]:
    """The results of all sends. The command, run again if it fails, must end well; all that was stored is consumed."""
    consumed: set[str] = set()
    results: list[cpp.Described | None] = []

    async def handle(message: MessageExt) -> None:
        consumed.add(message.body.decode())

    async with running(home, 2) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))

        async def produce() -> None:
            results.extend(await cpp.send(cluster, SENDS, pause_s=PAUSE_S))

        async def command() -> bool:
            line = [warm("mqadmin"), *words, "-n", cluster.nameserver, "--deadline", "80"]
            done = await trio.run_process(line, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
            assert b"Traceback" not in done.stdout, done.stdout.decode()
            return done.returncode == 0

        async with (
            PushConsumer(
                cluster.nameserver, group="ours", subscriptions={TOPIC: "*"}, handler=handle,
                consume_from=ConsumeFrom.FIRST_OFFSET,
            ),
            cpp.pushing(cluster, "cpp", TOPIC) as pushed,
        ):  # fmt: skip
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                await until(lambda: len(consumed) > 10, "the producer sends")
                killed = victim(cluster)
                if killed is None:
                    assert await command()
                else:
                    nursery.start_soon(command)
                    known = len(consumed)
                    await until(lambda: len(consumed) > known + 30, "the command is at work")
                    killed.kill()
                    killed.start()
                    await until(killed.ready, f"{killed.name} serves again")
                    await until(command, "the command ends well", 120)
            stored = {send["body"] for send, result in zip(SENDS, results, strict=True) if result}
            await until(lambda: stored <= consumed, "our group has all", 60)
            await until(lambda: stored <= set(pushed.bodies), "the C++ client's group has all", 60)
    return results
