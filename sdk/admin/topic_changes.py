"""Makes, changes and deletes topics on several brokers, with the records of ordered topics."""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Protocol

from skylark.mqcommon.errors import BrokerError, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID, is_light
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.order_records import (
    NAMESPACE,
    PERM_WRITE,
    end_order,
    format_order_conf,
    parse_order_conf,
    refuse_fewer_queues,
)
from skylark.sdk.admin.reports.changes import BrokerChange, NameServerChange, OnResult, all_ok, change_each
from skylark.sdk.admin.reports.problems import OnProgress, ask_each
from skylark.sdk.admin.reports.report import NOT_PRINTED
from skylark.sdk.admin.scope import Scope, addrs_in, is_known
from skylark.sdk.admin.targets import all_targets

_ABSENT = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)


class EachNameServer(Protocol):
    """Access to each NameServer by itself: NameServers exchange no data."""

    @property
    def namesrv_addrs(self) -> Sequence[str]: ...

    def admin_at(self, namesrv_addr: str, /) -> AbstractAsyncContextManager[Admin]: ...


@lazy_dataclass(frozen=True, slots=True)
class TopicPut:
    """A topic that was made or changed. ``order_conf``: the record that was written for an ordered topic, or None."""

    topic_config: TopicConfig
    order_conf: str | None
    results: Sequence[BrokerChange]
    #: Whether the topic had another number of queues on a broker: keys may be in other queues from now on.
    is_resized: bool = field(metadata=NOT_PRINTED)


@lazy_dataclass(frozen=True, slots=True)
class TopicDeletion:
    """A topic that was deleted.

    ``left``: the addresses of brokers that still have it. ``masterless``: names of sets without a master, which may
    bring the topic back. If both are empty, and the topic was known, the NameServers are asked to delete it.
    """

    topic: str
    brokers: Sequence[BrokerChange]
    namesrvs: Sequence[NameServerChange]
    left: Sequence[str]
    masterless: Sequence[str]
    #: Whether any broker or NameServer knew the topic before.
    was_known: bool = field(metadata=NOT_PRINTED)
    #: Why the record of an ordered topic is still there; None when it is gone, or there was none.
    order_failure: SkylarkError | None = field(default=None, metadata=NOT_PRINTED)

    def may_have_it(self) -> list[str]:
        """Brokers and masters that may still have the topic, for people."""
        return [*self.left, *(f"the master of {name}" for name in self.masterless)]

    def failures(self) -> list[SkylarkError]:
        """Failures that no server's result has: sets without a master, which bring the topic back; the record of an
        ordered topic; a name that nobody knew.
        """
        found: list[SkylarkError] = [
            UserError(f"the master of {name} is away: it brings topic {self.topic} back when it returns")
            for name in self.masterless
        ]
        if not self.was_known and not self.may_have_it():
            found.append(UserError(f"there is no topic {self.topic}: check its name with mqadmin topicList"))
        if self.order_failure is not None:
            found.append(self.order_failure)
        return found


async def put_topic(
    admin: Admin,
    scope: Scope,
    config: TopicConfig,
    *,
    on_result: OnResult | None = None,
    on_progress: OnProgress | None = None,
) -> TopicPut:
    """Make a topic on the brokers of ``scope``, or change it to ``config``.

    UserError, and nothing is changed, when sends of an ordered topic would fail. UserError after the change when no
    NameServer knows the broker at the address of ``scope``: the order of the topic is not recorded then.
    """
    topic = config.topic_name
    # Read before the change, for `is_resized`: with another number of queues, keys map to other queues.
    addrs = await addrs_in(admin, scope)
    if not config.order:
        queues = config.write_queue_nums if config.perm & PERM_WRITE else 0
        await refuse_fewer_queues(admin, {topic: queues}, await broker_names_of(admin, addrs))
    known = await ask_each(addrs, lambda addr: config_at(admin, addr, topic), on_progress)
    results = await change_each(addrs, lambda addr: admin.create_topic(addr, config), BrokerChange, on_result)
    order_conf = None
    # The record has each broker's number of queues, so it is written only when all brokers have changed.
    if config.order and all_ok(results):
        order_conf = await _put_order(admin, topic, config.write_queue_nums, scope)
    before = [one for one in known.values.values() if one is not None]
    is_resized = any(one.write_queue_nums != config.write_queue_nums for one in before)
    return TopicPut(config, order_conf, results, is_resized)


async def _put_order(admin: Admin, topic: str, queues: int, scope: Scope) -> str:
    """Record an ordered topic: replace the record for a cluster, or only the entry of one broker."""
    targets = all_targets(await admin.cluster_info(), scope.cluster_name)
    if scope.broker_addr is None:
        entries = {one.broker_name: str(queues) for one in targets}
    else:
        name = next((one.broker_name for one in targets if one.addr == scope.broker_addr), None)
        if name is None:
            known = f"no NameServer knows a broker at {scope.broker_addr}"
            raise UserError(f"{known}, so the order of {topic} is not recorded")
        entries = parse_order_conf(await admin.get_kv(NAMESPACE, topic) or "")
        entries[name] = str(queues)
    order_conf = format_order_conf(entries)
    await admin.put_kv(NAMESPACE, topic, order_conf)
    return order_conf


async def delete_topic(
    admin: Admin, name_servers: EachNameServer, topic: str, cluster: str, *, on_result: OnResult | None = None
) -> TopicDeletion:
    """Delete a topic from the brokers of a cluster, then, if all succeed, from the NameServers. May be run again."""
    # Slaves delete the topic, too: a slave that stands in for a lost master would register the topic again.
    addrs = await addrs_in(admin, Scope(None, cluster), slaves=True)
    targets = all_targets(await admin.cluster_info(), cluster)
    with_master = {one.broker_name for one in targets if one.broker_id == MASTER_ID}
    masterless = sorted({one.broker_name for one in targets} - with_master)
    was_known = await _is_topic_known(admin, name_servers, topic, addrs, cluster)
    brokers = await change_each(addrs, lambda addr: admin.delete_topic_in_broker(addr, topic), BrokerChange, on_result)

    async def forget(namesrv_addr: str) -> None:
        async with name_servers.admin_at(namesrv_addr) as own:
            # Brokers of other clusters that share the NameServer keep the topic, and its route.
            await own.delete_topic_in_namesrv(topic, cluster)

    left = [result.broker_addr for result in brokers if not result.ok]
    namesrvs: list[NameServerChange] = []
    order_failure: SkylarkError | None = None
    # A broker that still has the topic would register its route again.
    if was_known and not left and not masterless:
        namesrvs = await change_each(name_servers.namesrv_addrs, forget, NameServerChange, on_result)
        try:
            await end_order(admin, topic, with_master)
        except SkylarkError as error:
            order_failure = error
    return TopicDeletion(topic, brokers, namesrvs, left, masterless, was_known, order_failure)


async def _is_topic_known(
    admin: Admin, name_servers: EachNameServer, topic: str, broker_addrs: Collection[str], cluster: str
) -> bool:
    async def route(namesrv_addr: str) -> object:
        async with name_servers.admin_at(namesrv_addr) as own:
            found = await own.topic_route(topic)
        return next((data for data in found.broker_datas if data.cluster == cluster), None)

    # A light queue has neither a configuration nor a route.
    return (
        is_light(topic)
        or await is_known(broker_addrs, lambda addr: admin.topic_config(addr, topic))
        or await is_known(name_servers.namesrv_addrs, route)
    )


async def config_at(admin: Admin, addr: str, topic: str) -> TopicConfig | None:
    """The topic on the broker; None when it has no such topic."""
    try:
        return await admin.topic_config(addr, topic)
    except BrokerError as error:
        if error.code not in _ABSENT:
            raise
        return None


async def broker_names_of(admin: Admin, addrs: Collection[str]) -> list[str]:
    """The names of the brokers at these addresses."""
    return [one.broker_name for one in all_targets(await admin.cluster_info()) if one.addr in addrs]
