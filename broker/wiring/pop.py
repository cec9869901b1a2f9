"""Pop consumption: its parts, and who tells them of messages and of the role."""

from collections.abc import Callable

from broker.delivery.filters import Filters
from broker.delivery.hold import HeldPulls
from broker.delivery.pop.acks import AckHandlers
from broker.delivery.pop.asked import Checks
from broker.delivery.pop.copies import Copies
from broker.delivery.pop.found import Finder
from broker.delivery.pop.held import HeldPops
from broker.delivery.pop.log import ReviveLog
from broker.delivery.pop.pops import PopHandlers
from broker.delivery.pop.positions import Positions
from broker.delivery.pop.records import Queue
from broker.delivery.pop.reviving import Reviving
from broker.meta.offset_resets import OffsetResets
from broker.part import Part
from broker.replication.role import Role
from broker.wiring.core import Core


def wire_pop(
    core: Core, held_pulls: HeldPulls, filters: Filters, resets: OffsetResets, all_in_memory: Callable[[str, int], bool]
) -> list[Part]:
    """The parts, of which `Reviving` is the first: it has read the revive log before clients connect."""
    options, store, clock, metadata = core.options, core.store, core.clock, core.metadata
    topics, groups, offsets = metadata.topics, metadata.groups, metadata.consumer_offsets
    log = ReviveLog(
        store, core.writer, offsets, clock, options.broker_cluster_name, options.broker_name, core.store_host,
        core.stats.pops,
    )  # fmt: skip

    def taken_over(queue: Queue) -> None:
        # Else it would wait for a pull of the group.
        resets.pending.pop(queue, None)

    positions = Positions(log, offsets, store, clock, all_in_memory, taken_over)
    held = HeldPops(options.max_pop_polling_size, options.pop_polling_size)
    held_pulls.watchers.append(held.arrived)
    copies, checks = Copies(core.writer, topics, groups, options), Checks(topics, groups, options)

    async def persist() -> None:
        await core.persister.append_offsets()
        await core.persister.wait()

    reviving = Reviving(
        log, positions, copies, held, store, offsets, clock,
        lambda: core.role.now.is_master, lambda: _safe_end(core), core.flusher.flush, persist, core.turn_end,
        core.stats.pops,
    )  # fmt: skip

    def role_changed(before: Role, now: Role) -> None:
        if before.is_master or now.is_master:
            reviving.role_changed()

    core.role.observe(role_changed)
    finder = Finder(store, topics, log, positions, core.unconfirmed)
    return [
        reviving,
        PopHandlers(log, finder, held, copies, checks, filters, core.cold, core.stats, options, clock),
        AckHandlers(log, held, checks, store, core.durability, clock, core.turn_end),
    ]


def _safe_end(core: Core) -> int:
    """How far the log is safe here, and with all slaves that keep up."""
    store, acks = core.store, core.acks
    return min([store.safe_end, *[slave.acked for slave in acks.slaves() if acks.is_in_sync(slave, store.log.end)]])
