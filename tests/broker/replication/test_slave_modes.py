"""Modes of consumption that a slave copies from its master."""

from remoting.protocol.requests.groups import MessageRequestMode
from tests.broker.replication.test_slave_sync import SkylarkMaster, java_master, serving_master, slave, until
from tests.sdk.fakes import serving


async def test_a_change_is_copied_and_nothing_else() -> None:
    master = SkylarkMaster()
    modes = master.meta.metadata.request_modes
    modes.on_change.append(master.watch.changed)
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.sync.rounds >= 1)
        master.asked.clear()
        modes.put(MessageRequestMode("g", "T"))
        await until(lambda: copy.meta.metadata.request_modes.all() == modes.all())
        copy.meta.kill()
        assert copy.meta.metadata.request_modes.all() == modes.all()
        assert 402 in master.asked and 21 not in master.asked


async def test_they_are_copied_from_rocketmq_5() -> None:
    master = java_master("admin_5.3.3.jsonl")
    body = b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":8}}}}'
    master.on(402, lambda request: request.respond(body=body))
    async with serving(master), slave() as copy:
        copy.follow(master.addr)
        await until(lambda: copy.sync.rounds >= 3)
        assert copy.meta.metadata.request_modes.by_topic() == {"T": {"g": MessageRequestMode("g", "T", "POP", 8)}}
        assert copy.meta.metadata.request_modes.data_version.counter == 1, "the others found nothing new"


async def test_rocketmq_4_is_asked_once() -> None:
    """It does not know the request, and logs an error."""
    master = java_master("admin_4.9.8.jsonl")
    async with serving(master), slave() as copy:
        copy.follow(master.addr)
        await until(lambda: copy.sync.rounds >= 3)
        assert len(master.asked(402)) == 1
        assert copy.meta.metadata.request_modes.by_topic() == {}
