"""Master and slave of a set with Controllers, with logs in memory: they catch up, are cut, and report."""

from random import Random

import pytest
import trio
import trio.testing

from skylark.broker.replication.autoswitch.epochs import Epoch
from skylark.broker.replication.autoswitch.frames import MasterReader, SlaveHello, encode_ack, encode_slave_hello
from skylark.broker.replication.autoswitch.link import CONFIRM_S
from tests.broker.replication.autoswitch.sets import Member, Wires
from tests.broker.replication.test_replica import assert_same
from tests.support.memory_transport import SERVER
from tests.support.waiting import DEADLINE_S, until

HOST, PORT = SERVER.split(":")


def level(slave: Member, its_master: Member) -> bool:
    return slave.store.log.end == its_master.store.log.end == its_master.copies.ends.get(2)


@pytest.mark.parametrize("capacity", [100, 1 << 20])
async def test_a_slave_gets_all_files_and_epochs_and_what_comes(capacity: int) -> None:
    random, network = Random(capacity), Wires(capacity=capacity)
    its_master, slave = Member(), Member()
    for epoch in (1, 2, 5):
        await its_master.lead(epoch, 40, random)
    assert len(its_master.store.log.chain.segments) > 3
    async with its_master.serving(network) as target, slave.following(target, network.open):
        await until(lambda: level(slave, its_master), "what was there")
        for number in range(50):
            its_master.put(b"%d" % number)
        await until(lambda: level(slave, its_master), "what came")
        assert its_master.acks.slaves()[0].acked == slave.store.log.end
    assert_same(slave.store, its_master.store)
    assert list(slave.epochs.now) == list(its_master.epochs.now)
    assert [epoch for epoch, _ in slave.epochs.now] == [1, 2, 5]
    assert len(network.connections) == 1 and its_master.copies.left == [2]
    # What was saved is what it knows.
    slave.epochs.load()
    assert list(slave.epochs.now) == list(its_master.epochs.now)


@pytest.mark.parametrize("seed", range(3))
async def test_a_connection_that_breaks_anywhere_costs_no_byte(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.replication.slave.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("skylark.broker.replication.slave.MAX_PAUSE_S", 0.01)
    random, network = Random(seed), Wires(capacity=700)
    its_master, slave = Member(), Member()
    for epoch in (1, 2):
        await its_master.lead(epoch, 40, random)
    async with its_master.serving(network) as target, slave.following(target, network.open):
        for number in range(6):
            await until(lambda n=number: len(network.connections) > n, "a connection")  # type: ignore[misc]
            for _ in range(random.randrange(60)):
                await trio.lowlevel.checkpoint()
            network.connections[-1].cut()
            its_master.put(b"%d" % number)
        await until(lambda: level(slave, its_master), "the end of the log")
    assert_same(slave.store, its_master.store)
    assert list(slave.epochs.now) == list(its_master.epochs.now)


async def twins(random: Random) -> tuple[Member, Member]:
    """Two brokers with the same log of epoch 1."""
    network, one, two = Wires(), Member(), Member()
    await one.lead(1, 40, random)
    async with one.serving(network) as target, two.following(target, network.open):
        await until(lambda: level(two, one), "the same log")
    return one, two


@pytest.mark.parametrize("lost", [0, 1, 60])
async def test_the_tail_that_the_new_master_lacks_is_cut_and_messages_follow(lost: int) -> None:
    random, network = Random(lost), Wires()
    old, new = await twins(random)
    parted_at = old.store.log.end
    for number in range(lost):
        old.put(b"lost %d" % number)
    await new.lead(2, 30, random)
    async with new.serving(network) as target, old.following(target, network.open):
        await until(lambda: level(old, new), "the new master's log")
        new.put(b"one more")
        await until(lambda: level(old, new), "what follows")
    assert old.cuts == ([parted_at] if lost else [])
    assert_same(old.store, new.store)
    assert list(old.epochs.now) == [Epoch(1, 0), Epoch(2, parted_at)]


async def test_a_slave_leads_though_its_masters_last_epochs_did_not_arrive() -> None:
    """A connection may break between the headers and the log."""
    slave = Member()
    await slave.lead(1, 3)
    end = slave.store.log.end
    slave.epochs.now.begin(2, end)
    slave.epochs.now.begin(3, end + 100)
    await slave.lead(4, 3)
    assert list(slave.epochs.now) == [Epoch(1, 0), Epoch(4, end)]


async def test_a_log_that_only_a_deposed_master_wrote_is_saved_and_replaced() -> None:
    network, its_master, slave = Wires(), Member(), Member()
    await slave.lead(1, 3)
    await its_master.lead(2, 3)
    async with its_master.serving(network) as target, slave.following(target, network.open):
        await until(lambda: slave.cuts == [0] and level(slave, its_master), "the master's log")
    assert_same(slave.store, its_master.store)
    assert list(slave.epochs.now) == [Epoch(2, 0)]


async def test_a_log_that_may_have_something_in_common_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    network, its_master, slave = Wires(), Member(), Member()
    await its_master.lead(1, 3)
    await its_master.lead(3, 3)
    # As when the files of the first one were deleted.
    its_master.epochs.now.forget_before(its_master.store.log.end)
    await slave.lead(2, 3)
    before = slave.store.log.end
    async with its_master.serving(network) as target, slave.following(target, network.open) as following:
        await until(lambda: "nothing in common" in following.stopped, "the reason")
    assert slave.store.log.end == before and not slave.cuts
    assert "resyncSlave" in caplog.text


async def test_a_learner_copies_and_is_no_copy() -> None:
    network, its_master, learner = Wires(), Member(), Member()
    await its_master.lead(1, 10)
    async with its_master.serving(network) as target, learner.following(target, network.open, is_learner=True):
        await until(lambda: level(learner, its_master), "its log")
        assert its_master.copies.learners == {2}
        assert its_master.acks.reached(1) == -1


async def test_an_empty_log_may_begin_with_the_last_file() -> None:
    network, its_master, slave = Wires(), Member(), Member()
    await its_master.lead(1, 100)
    last = its_master.store.log.chain.segments[-1].base
    async with its_master.serving(network) as target, slave.following(target, network.open, from_last_file=True):
        await until(lambda: level(slave, its_master), "the last file")
    assert slave.store.log.start == last > 0


async def test_with_sync_flush_it_reports_what_is_on_disk() -> None:
    network, its_master, slave = Wires(), Member(), Member()
    await its_master.lead(1, 5)
    may_flush = trio.Event()

    async def flush() -> None:
        if slave.store.log.raw_end > slave.store.log.start:
            await may_flush.wait()
        await trio.to_thread.run_sync(slave.store.flush)

    async with its_master.serving(network) as target, slave.following(target, network.open, flush=flush):
        await until(lambda: slave.store.log.end == its_master.store.log.end, "its bytes")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert its_master.copies.ends == {2: 0}
        may_flush.set()
        await until(lambda: level(slave, its_master), "its report")
        assert slave.store.log.flushed == slave.store.log.end


async def test_a_slave_that_connects_again_replaces_its_old_connection() -> None:
    network, its_master = Wires(), Member()
    await its_master.lead(1, 5)
    end = its_master.store.log.end
    hello = encode_slave_hello(SlaveHello(False, False, 7))
    async with its_master.serving(network):
        older = await network.open(HOST, int(PORT))
        await older.send_all(hello + encode_ack(end))
        await until(lambda: its_master.copies.ends == {7: end}, "the first one")
        # It has lost the end of its log, and the master does not know yet that the first connection is dead.
        newer = await network.open(HOST, int(PORT))
        await newer.send_all(hello + encode_ack(1))
        await until(lambda: its_master.copies.ends == {7: 1}, "the second one")
        assert its_master.copies.left == [7] and its_master.acks.reached(1) == 1
        await until(lambda: len(its_master.master._connections) == 1, "the end of the first one")
        assert its_master.copies.ends == {7: 1} and its_master.acks.reached(1) == 1
        await newer.aclose()
        await until(lambda: its_master.copies.ends == {}, "the end of both")
        assert its_master.acks.reached(1) == -1
        await older.aclose()


async def test_a_second_broker_with_the_id_of_a_slave_is_refused_and_the_slave_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, its_master, slave, copied = Wires(), Member(), Member(), Member()
    copied.addr = "10.0.0.3:10911"
    await its_master.lead(1, 5)
    async with its_master.serving(network) as target, slave.following(target, network.open):
        await until(lambda: level(slave, its_master), "the first one")
        async with copied.following(target, network.open):
            await until(lambda: "copied brokerIdentity" in caplog.text, "the refusal")
            its_master.put(b"one more")
            await until(lambda: level(slave, its_master), "the first one still follows")
        assert its_master.copies.left == [] and copied.store.log.end == 0
    assert f"broker 2 is at {slave.addr}, and another one with this id at {copied.addr}" in caplog.text


async def test_nobody_follows_a_master_under_its_own_id(caplog: pytest.LogCaptureFixture) -> None:
    network, its_master = Wires(), Member()
    await its_master.lead(1, 5)
    its_master.registered = {1: f"{HOST}:10911"}
    its_master.followers.own = 1, f"{HOST}:10911"
    async with its_master.serving(network):
        stranger = await network.open(HOST, int(PORT))
        await stranger.send_all(encode_slave_hello(SlaveHello(False, False, 1)) + encode_ack(its_master.store.log.end))
        assert await stranger.receive(1 << 16) == b""
    assert not its_master.copies.ends and its_master.acks.reached(1) == -1
    assert f"broker 1 is at {HOST}:10911, and another one with this id" in caplog.text


async def test_only_brokers_of_the_set_at_their_registered_addresses_are_served(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.replication.slave.REFUSED_PAUSE_S", 0.001)
    network, its_master, slave = Wires(), Member(), Member()
    await its_master.lead(1, 5)
    its_master.registered = {1: "10.0.0.1:10911"}
    async with its_master.serving(network) as target:
        stranger = await network.open(HOST, int(PORT))
        end = its_master.store.log.end
        await stranger.send_all(encode_slave_hello(SlaveHello(False, False, 2)) + encode_ack(end))
        assert await stranger.receive(1 << 16) == b""
        assert "broker 2, which the Controllers do not know in this set; they know 1" in caplog.text
        its_master.registered[2] = "10.0.0.9:10911"
        async with slave.following(target, network.open) as following:
            await until(lambda: bool(following.stopped), "the refusal")
            assert "broker 2 is at 10.0.0.9:10911, and another one with this id at 10.0.0.2:10911" in following.stopped
            assert slave.store.log.end == 0 and not its_master.copies.ends and its_master.acks.reached(1) == -1
            its_master.registered[2] = slave.addr
            await until(lambda: level(slave, its_master), "it is registered now")
            # The Controllers forget it.
            del its_master.registered[2]
            await its_master.registered_replicas.refresh()
            its_master.followers.forget_others(its_master.registered_replicas.replicas)
            await until(lambda: its_master.copies.left == [2], "it does not count any more")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (encode_slave_hello(SlaveHello(False, False, 2)) + encode_ack(1 << 40), "the master only up to"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "is not the hello of a slave in a set with a Controller"),
    ],
)
async def test_who_cannot_follow_is_turned_away(sent: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    network, its_master = Wires(), Member()
    await its_master.lead(1, 5)
    async with its_master.serving(network):
        stream = await network.open(HOST, int(PORT))
        await stream.send_all(sent)
        await until(lambda: reason in caplog.text, "the reason")
    assert not its_master.copies.ends and not its_master.copies.left


async def test_a_slave_that_does_not_read_costs_one_piece_and_goes_on_later() -> None:
    network, its_master = Wires(capacity=500), Member()
    await its_master.lead(1, 5)
    async with its_master.serving(network):
        stream = await network.open(HOST, int(PORT))
        await stream.send_all(encode_slave_hello(SlaveHello(False, False, 2)) + encode_ack(0))
        await until(lambda: 2 in its_master.copies.ends, "the slave")
        for number in range(100):
            its_master.put(b"%d" % number)
        await trio.testing.wait_all_tasks_blocked(0.01)
        (slave,) = its_master.acks.slaves()
        assert slave.next_offset <= its_master.store.log.chain.segment_bytes
        reader, size = MasterReader(), 0
        with trio.fail_after(DEADLINE_S):
            while size < its_master.store.log.end:
                size += sum(len(piece.data) for piece in reader.receive(await stream.receive(10_000)))
        assert size == its_master.store.log.end


async def test_a_confirm_offset_that_moves_is_told_soon_without_data(autojump_clock: trio.testing.MockClock) -> None:
    network, its_master = Wires(), Member()
    await its_master.lead(1, 5)
    end = its_master.store.log.end
    async with its_master.serving(network):
        stream = await network.open(HOST, int(PORT))
        await stream.send_all(encode_slave_hello(SlaveHello(False, False, 2)) + encode_ack(end))
        reader = MasterReader()
        with trio.fail_after(60):
            while not reader.receive(await stream.receive(1000)):
                pass
            its_master.confirmed = end
            began = trio.current_time()
            # As the part does ten times a second.
            await trio.sleep(CONFIRM_S)
            its_master.master.beat()
            (beat,) = reader.receive(await stream.receive(1000))
            assert beat.confirm_offset == end and not beat.data
            assert trio.current_time() - began <= 2 * CONFIRM_S
            # Then it is told at the usual times.
            its_master.master.beat()
            assert reader.receive(await stream.receive(1000))[0].confirm_offset == end
            assert trio.current_time() - began >= its_master.terms.heartbeat_s


async def test_a_slave_knows_what_is_confirmed_of_what_it_has() -> None:
    network, its_master, slave = Wires(), Member(), Member()
    await its_master.lead(1, 5)
    its_master.confirmed = confirmed = its_master.store.log.end
    async with its_master.serving(network) as target, slave.following(target, network.open):
        its_master.put(b"not yet confirmed")
        await until(lambda: level(slave, its_master), "its log")
        assert slave.confirmed == confirmed
