"""All disks of a set are lost: the set is made again from its bucket, by the steps of docs/operate/tiered.md.

The whole log was in the bucket, the copy of the open file included. So each message that was acknowledged comes back,
most of them in the bucket only, and the offsets of a group.
"""

import shutil
import subprocess
import sys
from itertools import chain, pairwise
from pathlib import Path

import pytest
import trio

from scripts.controller_set import NAME, ControllerSet, running
from scripts.daemons import BIN
from skylark import Admin, Producer, PullConsumer
from skylark.mqcommon.message.queue import MessageQueue
from tests.e2e.faults.sets import CONTROLLER, DLEDGER, MADE, SET, SINGLE, open_links
from tests.e2e.load import Load, check_acknowledged, check_order, stored
from tests.e2e.switches import PAUSE_S, QUEUES, SEND_TIMEOUT_MS, TOPIC
from tests.e2e.test_tier import BODY_BYTES, FEW, OPTIONS, SENDERS, until_most_is_in_the_bucket_only
from tests.support.waiting import until

GROUP, GROUP_OFFSET = "group", 7
# A set in Controller mode whose Controllers lose their disks, too: terms of masters begin with 1 again.
WITH_CONTROLLERS = "controllers, too"


async def send(at: ControllerSet, name: str) -> Load:
    """Send messages that fill files of the log."""
    async with Producer(at.nameserver, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        load = Load(producer, TOPIC, name, pause_s=PAUSE_S, body_bytes=BODY_BYTES)
        async with trio.open_nursery() as senders:
            for sender in range(SENDERS):
                senders.start_soon(load.send, sender)
            await load.more_from(NAME, FEW)
            load.stopping = True
    return load


async def commit(admin: Admin, at: ControllerSet, addr: str) -> None:
    """Commit an offset of `GROUP`, and wait until the metadata in the bucket has the offset.

    A copy of the metadata may have begun before a commit, and is in the bucket after it. So another group commits, too:
    the copy for that group begins after the copy for this one.
    """
    queue = MessageQueue(TOPIC, NAME, 0)
    for group in (GROUP, "another"):
        before = (await admin.tier_status(addr)).metadata_ms
        async with PullConsumer(at.nameserver, group=group) as consumer:
            await consumer.commit_offset(queue, GROUP_OFFSET)

        async def is_copied(before: int = before) -> bool:
            return (await admin.tier_status(addr)).metadata_ms > before

        await until(is_copied, f"the metadata is copied after {group} has committed")


async def until_all_is_in_the_bucket(admin: Admin, addr: str) -> None:
    async def is_reached() -> bool:
        end = int((await admin.broker_runtime_info(addr))["commitLogMaxOffset"])
        return (await admin.tier_status(addr)).tail_to == end

    await until(is_reached, "the open file is copied up to its end")


async def run(*words: str) -> None:
    await trio.run_process([str(BIN / words[0]), *words[1:]], stdout=subprocess.DEVNULL)


async def lose_all(at: ControllerSet, *, controllers: bool) -> None:
    """All brokers are killed, and their disks are lost; with ``controllers`` the disks of the Controllers, too."""
    for broker in at.brokers:
        broker.kill()
        at.lose_disk(broker)
    if not controllers:
        return
    for controller in at.controllers:
        controller.kill()
    for controller in at.controllers:
        shutil.rmtree(at.home / controller.name)
        controller.start()


async def make_again(at: ControllerSet, admin: Admin, mode: str, url: str) -> None:
    """The steps of the manual: one broker from the bucket, then the others with empty directories."""
    first, *others = at.brokers
    store = str(at.store_of(first))
    if mode == CONTROLLER:
        await run("mqadmin", "cleanBrokerMetadata", "-a", ";".join(at.controller_addrs), "-bn", NAME)
    await run("mqadmin", "tierRestore", "--tierPath", url, "--set", NAME, "--to", store)
    if mode == DLEDGER:
        # The last of an option that is given twice counts.
        peers = {option: value for option, value in pairwise(first.command) if option == "--d-leger-peers"}
        await run("broker", "dledger-init", store, *chain(*peers.items()), "--d-leger-self-id", "n0")
    await at.start_broker(first)
    assert await at.until_master(admin) is first
    for broker in others:
        await at.start_broker(broker)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", [SINGLE, SET, CONTROLLER, WITH_CONTROLLERS, DLEDGER])
async def test_a_set_that_lost_all_disks_is_made_again_from_its_bucket(mode: str, tmp_path: Path, s3_url: str) -> None:
    url = f"{s3_url}/prod"
    at = MADE[CONTROLLER if mode == WITH_CONTROLLERS else mode](tmp_path)
    for broker in at.brokers:
        broker.command = [*broker.command, *OPTIONS, "--tier-path", url]
    async with trio.open_nursery() as links:
        await open_links(at, links)
        async with running(at), Admin(at.nameserver) as admin:
            master = await at.until_in_sync(admin)
            await at.make_topic(admin, TOPIC, QUEUES)
            before = await send(at, "before")
            await commit(admin, at, master.addr)
            gone = await until_most_is_in_the_bucket_only(at, admin, master)
            await until_all_is_in_the_bucket(admin, master.addr)

            await lose_all(at, controllers=mode == WITH_CONTROLLERS)
            await make_again(at, admin, mode, url)
            master = await at.until_in_sync(admin)
            found = await stored(at.nameserver, TOPIC)
            check_acknowledged(before.acked, found)
            async with PullConsumer(at.nameserver, group=GROUP) as consumer:
                assert await consumer.committed_offset(MessageQueue(TOPIC, NAME, 0)) == GROUP_OFFSET

            after = await send(at, "after")
            await until_most_is_in_the_bucket_only(at, admin, await at.until_in_sync(admin))
            found = await stored(at.nameserver, TOPIC)
            check_acknowledged([*before.acked, *after.acked], found, counted_before=len(before.acked))
            check_order(found)
        links.cancel_scope.cancel()
    sys.stdout.write(f"{len(before.acked)} messages before the loss, {gone} files in the bucket only: all are back\n")
