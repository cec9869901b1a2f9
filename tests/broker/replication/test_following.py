"""A slave follows its master: two brokers, real sockets, memory for disks."""

from random import Random

import pytest

from tests.broker.replication.sets import broker, slave_of
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d:" % number + bytes(number % 700) for number in range(start, start + count)]


@pytest.mark.parametrize("plain", [True, False])
async def test_a_slave_catches_up_from_old_files_and_follows(plain: bool) -> None:
    secret = {} if plain else {"ha_shared_secret": "x"}
    async with broker(**secret) as master:
        for body in bodies(300):
            await master.send("T", body)
        assert len(master.fs.listdir("/store/commitlog")) > 2
        async with broker(**slave_of(master, **secret)) as slave:
            if plain:
                # RocketMQ's way: an empty slave gets the last file only.
                await slave.has("T", 1)
                await until(lambda: slave.log_end == master.log_end, "the end of the log")
                had = await slave.bodies("T")
                assert had == bodies(300)[-len(had) :] and len(had) < 300
            else:
                assert await slave.has("T", 300) == bodies(300)
                had = bodies(300)
            for body in bodies(200, 300):
                await master.send("T", body)
            assert await slave.has("T", len(had) + 200) == had + bodies(200, 300)
            assert master.log().endswith(slave.log()) and slave.log_end == master.log_end


async def test_a_slave_comes_back_after_it_was_killed() -> None:
    async with broker() as master:
        for body in bodies(50):
            await master.send("T", body)
        async with broker(**slave_of(master, ha_shared_secret="")) as slave:
            await slave.has("T", 50)
            left = slave.kill()
        for body in bodies(250, 50):
            await master.send("T", body)
        async with broker(left, **slave_of(master)) as slave:
            assert await slave.has("T", 300) == bodies(300)
            assert slave.log() == master.log()


@pytest.mark.parametrize("seed", range(10))
async def test_a_slave_comes_back_after_a_power_loss(seed: int) -> None:
    random = Random(seed)
    options = {"ha_shared_secret": "x", "flush_interval_commit_log": random.choice([1, 500])}
    async with broker(**options) as master:
        for body in bodies(100):
            await master.send("T", body)
        async with broker(**slave_of(master, **options)) as slave:
            await slave.has("T", random.randrange(1, 100))
            left = slave.fs.crash(random)
            slave.kill()
        for body in bodies(50, 100):
            await master.send("T", body)
        async with broker(left, **slave_of(master, **options)) as slave:
            assert await slave.has("T", 150) == bodies(150)
            assert slave.log() == master.log()


async def test_a_slave_follows_again_when_its_master_was_killed() -> None:
    options = {"ha_shared_secret": "x"}
    async with broker(**options) as master:
        port = int(master.broker.ha_addr.rpartition(":")[2])
        await master.send("T", b"one")
        async with broker(**slave_of(master, **options)) as slave:
            await slave.has("T", 1)
            left = master.kill()
            async with broker(left, ha_listen_port=port, **options) as again:
                await again.send("T", b"two")
                assert await slave.has("T", 2) == [b"one", b"two"]


async def test_a_divergent_slave_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    options = {"ha_shared_secret": "x"}
    async with broker(**options) as master:
        port = int(master.broker.ha_addr.rpartition(":")[2])
        async with broker(**slave_of(master, **options)) as slave:
            await master.send("T", b"one")
            await slave.has("T", 1)
            master.kill()
            async with broker(MemoryFiles(), ha_listen_port=port, **options) as other:
                await other.send("T", b"two")
                await until(lambda: "replication stopped" in caplog.text, "the slave's word")
                assert "other bytes than the master at offset 0" in caplog.text or "up to" in caplog.text
                assert "broker resyncSlave" in caplog.text
                assert await slave.bodies("T") == [b"one"]
