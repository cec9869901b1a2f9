"""mqadmin's commands about tiered storage, as their users type them: a broker loses its disk, and comes back."""

import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result

from skylark import Admin, Message, MessageQueue, Producer, PullConsumer
from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.commands.tier import _until_purged
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import RemotingError, UserError
from skylark.mqcommon.tier.layout import set_name
from skylark.mqcommon.tier.opening import open_bucket
from skylark.remoting.protocol.requests.tier import FOLLOWER, OWNER, STOPPED, TierStatus
from tests.support.in_process import servers
from tests.support.tier_segments import Sent, TierWriter
from tests.support.waiting import until


async def run(*words: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, words))


async def test_a_broker_without_a_bucket_says_so(tmp_path: Path) -> None:
    async with servers(tmp_path, {}) as at:
        found = await run("tierStatus", "-b", at.broker)
        assert (found.exit_code, found.stdout) == (0, f"{at.broker}: no bucket (tierPath is not set)\n")
        for command in ("tierVerify", "tierPurge", "tierTakeOver"):
            found = await run(command, "-b", at.broker)
            assert found.exit_code == 1 and found.stderr.endswith("has no bucket: tierPath is not set\n")


async def test_sets_are_named_as_their_brokers_and_what_a_probe_has_left_is_none(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    bucket = open_bucket(url, timeout_s=10)
    TierWriter(bucket, set_name=set_name("a b")).add([Sent("t", 0, 0, b"x", 1_000)])
    bucket.put("skylark-probe/x/0", [b"x"])
    for more in ((), ("--set", "a b")):
        found = await run("tierVerify", "--tierPath", url, *more)
        assert (found.exit_code, found.stdout.count(": sound: ")) == (0, 1), found.output


@pytest.mark.process
async def test_a_broker_whose_disk_is_gone_comes_back_from_its_bucket(tmp_path: Path) -> None:
    bucket, store = tmp_path / "bucket", tmp_path / "store"
    url = f"file://{bucket}"
    options = {"tier_path": url, "tier_tail_interval_ms": 1_000, "tier_local_bytes": 1 << 20}
    bucket.mkdir()
    bodies = [b"%d " % number + bytes(100_000) for number in range(35)]
    async with servers(tmp_path, {"orders": 1, "other": 1}, **options) as at, AsyncExitStack() as opened:
        async with Producer(at.nameserver) as producer:
            await producer.send(Message("other", b"x"))
            for body in bodies:
                await producer.send(Message("orders", body))

        admin = await opened.enter_async_context(Admin(at.nameserver))

        async def is_all_there() -> bool:
            (one,) = json.loads((await run("tierStatus", "-b", at.broker, "--output", "json")).stdout)
            assert not one["problem"]
            end = int((await admin.broker_runtime_info(at.broker))["commitLogMaxOffset"])
            return one["segments"] >= 3 and bool(one["metadataMs"]) and one["tailTo"] == end

        await until(is_all_there)
        shown = await run("tierStatus", "-c", "DefaultCluster", "-n", at.nameserver)
        assert shown.exit_code == 0 and f"{at.broker}: OWNER, {url}, set broker-a, epoch " in shown.stdout
        assert "in the bucket: log from 0 to 3,145,728, 3 files" in shown.stdout
        for words in (("-b", at.broker), ("--tierPath", url), ("--tierPath", url, "--set", "broker-a", "--full")):
            sound = await run("tierVerify", *words)
            assert sound.exit_code == 0, sound.output
            assert "broker-a: manifest " in sound.stdout and ": sound: " in sound.stdout
    shutil.rmtree(store)

    wrong = await run("tierRestore", "--tierPath", url, "--set", "broker-b", "--to", str(store))
    assert wrong.exit_code == 1 and "(it has: broker-a)" in wrong.stderr and wrong.stderr.count("\n") == 1
    made = await run("tierRestore", "--tierPath", url, "--set", "broker-a", "--to", str(store), "--since", "now")
    assert made.exit_code == 0, made.output
    assert "restored. Start a broker with brokerName=broker-a" in made.stdout
    assert "1 queues without a message in it go on where the bucket's messages end" in made.stdout
    again = await run("tierRestore", "--tierPath", url, "--set", "broker-a", "--to", str(store))
    assert again.exit_code == 1 and "is not empty" in again.stderr
    async with servers(tmp_path, **options) as at:
        async with PullConsumer(at.nameserver, group="readers") as consumer:
            queue = MessageQueue("orders", "broker-a", 0)
            found: list[bytes] = []
            while len(found) < len(bodies):
                got = await consumer.pull(queue, len(found))
                found += [message.body for message in got.messages]
            assert found == bodies
        async with Producer(at.nameserver) as producer:
            assert (await producer.send(Message("orders", b"new"))).queue_offset == len(bodies)
            assert (await producer.send(Message("other", b"new"))).queue_offset == 1

        async def owns_again() -> bool:
            return ": OWNER, " in (await run("tierStatus", "-b", at.broker)).stdout

        await until(owns_again)
        owned = await run("tierTakeOver", "-b", at.broker)
        assert owned.exit_code == 0 and ": OWNER, " in owned.stdout
        purged = await run("tierPurge", "-b", at.broker)
        assert purged.exit_code == 0 and "has nothing of deleted topics any more" in purged.stdout

    name = next(bucket.glob("broker-a/seg/*/0.log"))
    raw = bytearray(name.read_bytes())
    raw[1000] ^= 1
    name.chmod(0o644)
    name.write_bytes(bytes(raw))
    assert (await run("tierVerify", "--tierPath", url)).exit_code == 0
    damaged = await run("tierVerify", "--tierPath", url, "--full")
    assert damaged.exit_code == 1 and f"{name.parent.name}/0.log: its bytes are not those that were" in damaged.stdout


@pytest.mark.parametrize(
    ("answers", "is_done"),
    [
        ([TierStatus(OWNER, purge_left=2), TierStatus(OWNER, leftovers=4)], True),
        ([TierStatus(OWNER, purge_left=2), TierStatus(FOLLOWER)], False),
        ([TierStatus(OWNER, purge_left=2), RemotingError("closed"), TierStatus(OWNER)], False),
        ([RemotingError("closed"), TierStatus(OWNER, purge_left=2), TierStatus(STOPPED, problem="no right")], False),
    ],
)
async def test_a_purge_that_a_broker_has_forgotten_does_not_count_as_done(
    answers: list[TierStatus | RemotingError], is_done: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Asked:
        """A session, and the admin of it."""

        def progress(self, text: str) -> None:
            assert text == "a:1: 2 files left to purge"

        async def tier_status(self, addr: str) -> TierStatus:
            answer = left.pop(0)
            if isinstance(answer, RemotingError):
                raise answer
            return answer

        @property
        def admin(self) -> "Asked":
            return self

    left, session = answers.copy(), cast(Session, Asked())
    if is_done:
        assert (await _until_purged(session, "a:1")).leftovers == 4
    else:
        with pytest.raises(UserError, match=r"by the same command|no right"):
            await _until_purged(session, "a:1")
