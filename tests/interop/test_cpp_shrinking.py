"""The official C++ client goes on while its topic shrinks and a broker is drained; it asks for routes every 30 s."""

import subprocess
from pathlib import Path

import pytest
import trio

from scripts.daemons import BIN
from sdk import ConsumeFrom, MessageExt, PushConsumer, TopicConfig
from sdk.admin.commands.shrinking import SETTLE_S
from tests.interop import cpp
from tests.support.daemons import make_topic, running
from tests.support.waiting import until

TOPIC = "cpp-shrinks"
PAUSE_S = 0.1
# Sends for as long as a command takes, and then some.
SENDS = [{"how": "sync", "topic": TOPIC, "body": str(number)} for number in range(int((SETTLE_S + 20) / PAUSE_S))]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "words",
    [("shrinkTopic", "-t", TOPIC, "-c", "DefaultCluster", "-w", "1"), ("drain", "-b", "broker-a")],
    ids=["shrinkTopic", "drain"],
)
async def test_no_send_fails_and_all_is_consumed(tmp_path: Path, words: tuple[str, ...]) -> None:
    consumed: list[str] = []
    results: list[cpp.Described | None] = []

    async def handle(message: MessageExt) -> None:
        consumed.append(message.body.decode())

    async with running(tmp_path, 2) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))

        async def produce() -> None:
            results.extend(await cpp.send(cluster, SENDS, pause_s=PAUSE_S))

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
                line = [str(BIN / "mqadmin"), *words, "-n", cluster.nameserver, "--deadline", "80"]
                done = await trio.run_process(line, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
                assert done.returncode == 0, done.stdout.decode()
            bodies = {send["body"] for send in SENDS}
            assert [result and result["status"] for result in results] == ["OK"] * len(SENDS)
            await until(lambda: bodies <= set(consumed), "our group has all")
            await until(lambda: bodies <= set(pushed.bodies), "the C++ client's group has all")
