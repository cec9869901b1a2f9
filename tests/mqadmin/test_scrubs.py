"""mqadmin scrub, as its users type it."""

import json
from pathlib import Path

import trio
from click.testing import CliRunner, Result

from skylark import Message, Producer
from skylark.broker.cli import main as broker
from skylark.broker.store.sums.block_sums import BLOCK_BYTES
from skylark.mqadmin.cli import mqadmin
from tests.support.in_process import servers
from tests.support.waiting import until


async def run(*words: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, words))


async def test_a_scrub_now_says_what_it_has_found_and_each_mistake_is_one_line(tmp_path: Path) -> None:
    async with servers(tmp_path, {"orders": 1}) as at:
        status = await run("scrub", "-b", at.broker)
        assert status.exit_code == 0, status.output
        assert status.stdout == f"{at.broker}: no scrub is running; never checked as a whole; no damage\n"
        async with Producer(at.nameserver) as producer:
            for _ in range(8):
                await producer.send(Message("orders", bytes(100_000)))

        async def scrubbed() -> bool:
            """Messages get to the disk some time after they were sent, and are checked then."""
            done = await run("scrub", "-c", "DefaultCluster", "-n", at.nameserver, "--now", "--output", "json")
            (one,) = json.loads(done.stdout)
            assert (done.exit_code, one["brokerAddr"], one["running"], one["problemCount"]) == (0, at.broker, False, 0)
            return int(one["checkedBytes"]) >= 2 * BLOCK_BYTES

        await until(scrubbed)
        log = tmp_path / "store/commitlog" / ("0" * 20)
        with log.open("r+b") as file:
            file.seek(BLOCK_BYTES + 1_000)
            file.write(b"?")
        # Nobody else has these messages.
        done = await run("scrub", "-b", at.broker, "--now", "--rate", "1000")
        assert done.exit_code == 1 and done.stderr == ""
        assert f"{at.broker}: {log}: offset {BLOCK_BYTES}: does not match its sum; NOT repaired\n" in done.stdout
        assert "; problems: 1, repaired: 0, damaged blocks of the log now: 1\n" in done.stdout
        again = await run("scrub", "-b", at.broker, "--status")
        assert again.exit_code == 1 and "NOT repaired" in again.stdout
        for words, text in (
            (("--now", "--status"), "give --now or --status, not both"),
            (("--rate", "5"), "--rate is the rate of a scrub that begins now"),
        ):
            wrong = await run("scrub", "-b", at.broker, *words)
            assert wrong.exit_code != 0 and text in wrong.stderr and wrong.stderr.count("\n") == 1
        missing = await run("scrub", "-b", "127.0.0.1:1")
        assert missing.exit_code == 1 and missing.stderr.count("\n") == 1
        checked = await trio.to_thread.run_sync(CliRunner().invoke, broker, ["verifyStore", str(tmp_path / "store")])
        assert checked.exit_code == 1
        assert (
            "is open in a broker: stop it first, or have it check its store while it serves: mqadmin" in checked.stderr
        )
