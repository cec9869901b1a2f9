"""All replicas dead and returning in each order, with and without unclean elections; an empty SyncStateSet."""

import logging
from itertools import permutations, product

import pytest

from tests.sim.controller.broker import Broker
from tests.sim.controller.controllers import TIMEOUT_MS
from tests.sim.controller.world import World
from tests.support.amounts import share_of

logger = logging.getLogger(__name__)

# Longer than a dead broker is taken for living, and than the next look at all sets takes.
NOTICED_S = TIMEOUT_MS / 1000 + 3
ORDERS = list(permutations(range(3)))


def a_set(size: int, *, unclean: bool = False) -> World:
    """A set that works, with some messages."""
    world = World(1, unclean=unclean, size=size)
    world.calm()
    world.begin()
    world.settle()
    wait(world, 5)
    world.settle()
    assert len(world.checks.final) > 0
    return world


def wait(world: World, seconds: float) -> None:
    world.scheduler.run_until(world.scheduler.now + seconds)


def master_of(world: World) -> Broker:
    master = world.master()
    assert master is not None and master.leads
    return master


def followers_of(world: World) -> list[Broker]:
    return [each for each in world.brokers if each is not master_of(world)]


def kill(world: World, *brokers: Broker) -> None:
    for broker in brokers:
        broker.die(power_loss=False)


@pytest.mark.parametrize("order", ORDERS)
def test_all_die_at_once_and_return_in_each_order(order: tuple[int, ...]) -> None:
    """All had everything, so whoever returns first leads."""
    world = a_set(3)
    before = bytes(world.checks.final)
    kill(world, *world.brokers)
    wait(world, NOTICED_S)
    assert world.master() is None
    for number in order:
        world.brokers[number].start()
        wait(world, NOTICED_S)
        assert world.master() is not None
    world.settle()
    assert world.checks.final.startswith(before) and not world.checks.lost_records


@pytest.mark.parametrize(("order", "unclean"), tuple(share_of(product(ORDERS, [False, True]), 2)))
def test_masters_die_one_after_another_and_return_in_each_order(order: tuple[int, ...], unclean: bool) -> None:
    """The last one wrote alone: only that one has everything. Without it there is no master, or messages are lost."""
    world = a_set(3, unclean=unclean)
    kill(world, *followers_of(world))
    wait(world, NOTICED_S + 5)
    last = master_of(world)
    written = len(world.checks.final)
    known = world.controllers.known
    assert known is not None and len(known.sync_state_set) == 1
    assert any(each.disk.end < written for each in world.brokers)
    kill(world, last)
    wait(world, NOTICED_S)
    assert world.master() is None
    for number in order:
        world.brokers[number].start()
        wait(world, NOTICED_S)
        master = world.master()
        assert (master is not None) is (unclean or last.alive)
        assert unclean or master in (None, last)
    world.settle()
    is_lossy = unclean and world.brokers[order[0]] is not last
    logger.info("%s unclean=%s: %d records lost", order, unclean, world.checks.lost_records)
    assert (world.checks.lost_records > 0) is is_lossy


@pytest.mark.parametrize("unclean", [False, True])
def test_an_empty_sync_state_set(unclean: bool) -> None:
    """The administrator removed the only member: nobody has everything, and only an unclean election ends that."""
    world = a_set(2, unclean=unclean)
    slave, last = followers_of(world)[0], master_of(world)
    kill(world, slave)
    wait(world, NOTICED_S + 5)
    kill(world, last)
    wait(world, NOTICED_S)
    world.lose_disk(last)
    world.checks.may_lose = True
    known, leader = world.controllers.known, world.controllers.leader
    assert known is not None and leader is not None
    leader.clean(min(known.sync_state_set))
    wait(world, 1)
    known = world.controllers.known
    assert known is not None and (known.master, known.sync_state_set) == (None, frozenset())
    slave.start()
    wait(world, NOTICED_S)
    assert (world.master() is slave) is unclean
    if unclean:
        last.start()
        world.settle()
        logger.info("%d records lost", world.checks.lost_records)
        assert world.checks.lost_records > 0
