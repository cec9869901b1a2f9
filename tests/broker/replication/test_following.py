"""A slave follows its master: two brokers and a NameServer, real sockets, memory for disks."""

from random import Random
from typing import Any

import pytest

from tests.broker.replication.sets import SLAVE, broker
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

Options = dict[str, Any]


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d:" % number + bytes(number % 700) for number in range(start, start + count)]


async def test_a_slave_catches_up_from_old_files_and_follows(options: Options) -> None:
    async with broker(**options) as master:
        await master.send("T", *bodies(300))
        assert len(master.fs.listdir("/store/commitlog")) > 2
        async with broker(**options, **SLAVE) as slave:
            assert await slave.has("T", 300) == bodies(300)
            await master.send("T", *bodies(200, 300))
            assert await slave.has("T", 500) == bodies(500)
            assert slave.log() == master.log()


async def test_a_slave_may_copy_the_last_file_only(options: Options) -> None:
    async with broker(**options) as master:
        await master.send("T", *bodies(300))
        async with broker(**options, **SLAVE, sync_from_last_file=True) as slave:
            await until(lambda: slave.log_end == master.log_end, "the end of the log")
            had = await slave.has("T", 1)
            assert had == bodies(300)[-len(had) :] and len(had) < 300
            await master.send("T", *bodies(200, 300))
            assert await slave.has("T", len(had) + 200) == had + bodies(200, 300)
            assert master.log().endswith(slave.log())


async def test_a_plain_slave_is_served(options: Options) -> None:
    # Told the HA address only, and where the other one cannot be guessed: it says no hello.
    async with broker(**options) as master:
        await master.send("T", *bodies(100))
        plain = {**SLAVE, "ha_master_address": master.broker.ha_addr}
        async with broker(**options, **plain) as slave:
            await until(lambda: slave.log_end == master.log_end, "the end of the log")
            assert master.log().endswith(slave.log())
            assert bodies(100)[-1] in await slave.has("T", 1)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
async def test_a_slave_comes_back_after_a_kill_or_a_power_loss(options: Options, seed: int) -> None:
    random = Random(seed)
    options |= {"flush_interval_commit_log": random.choice([1, 500])}
    async with broker(**options) as master:
        await master.send("T", *bodies(100))
        async with broker(**options, **SLAVE) as slave:
            await slave.has("T", random.randrange(1, 100))
            lost = slave.fs.crash(random)
            killed = slave.kill()
        await master.send("T", *bodies(200, 100))
        async with broker(killed if seed == 0 else lost, **options, **SLAVE) as slave:
            assert await slave.has("T", 300) == bodies(300)
            assert slave.log() == master.log()


async def test_a_slave_follows_again_when_its_master_was_killed(options: Options) -> None:
    async with broker(**options) as master:
        await master.send("T", b"one")
        async with broker(**options, **SLAVE) as slave:
            await slave.has("T", 1)
            async with broker(master.kill(), **options) as again:
                await again.send("T", b"two")
                assert await slave.has("T", 2) == [b"one", b"two"]


async def test_a_slave_that_was_stopped_gently_is_a_whole_store(options: Options) -> None:
    async with broker(**options) as master:
        await master.send("T", *bodies(100))
        async with broker(**options, **SLAVE) as slave:
            await slave.has("T", 100)
        assert not slave.fs.exists("/store/abort")
        # It goes on as a master.
        async with broker(slave.fs, broker_name="broker-b") as other:
            await other.send("T", b"new")
            assert await other.has("T", 101) == [*bodies(100), b"new"]


async def test_a_slave_with_other_messages_is_left_as_it_is(options: Options, caplog: pytest.LogCaptureFixture) -> None:
    async with broker(**options) as master, broker(**options, **SLAVE) as slave:
        await master.send("T", b"one")
        await slave.has("T", 1)
        master.kill()
        async with broker(MemoryFiles(), **options) as other:
            await other.send("T", b"two and more")
            await until(lambda: "replication stopped" in caplog.text, "the slave's word")
            assert "broker resyncSlave" in caplog.text
            assert b"one" in slave.log() and b"two" not in slave.log()
