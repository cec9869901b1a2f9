"""Subscription groups: configuration (200, 201) and members (38)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import FLAG, INT, LONG, TEXT, body_of, choice, list_of, map_of


@dataclass(slots=True)
class ExponentialRetryPolicy(Body):
    """Delays that grow, in milliseconds."""

    initial: int = member(LONG, 5000)
    max: int = member(LONG, 7_200_000)
    multiplier: int = member(LONG, 2)


@dataclass(slots=True)
class CustomizedRetryPolicy(Body):
    """Delays one by one, in milliseconds."""

    next: list[int] = member(list_of(LONG))


@dataclass(slots=True)
class GroupRetryPolicy(Body):
    """When a message that was not consumed is delivered again."""

    type: str = member(choice("EXPONENTIAL", "CUSTOMIZED"), "CUSTOMIZED")
    exponential_retry_policy: ExponentialRetryPolicy | None = member(body_of(ExponentialRetryPolicy), None)
    customized_retry_policy: CustomizedRetryPolicy | None = member(body_of(CustomizedRetryPolicy), None)


@dataclass(slots=True)
class SimpleSubscriptionData(Body):
    """A subscription that the group's configuration fixes."""

    topic: str = member(TEXT, "")
    expression_type: str = member(TEXT, "TAG")
    expression: str = member(TEXT, "*")
    version: int = member(LONG, 0)


@dataclass(slots=True)
class SubscriptionGroupConfig(Body):
    """How a broker serves a consumer group."""

    group_name: str = member(TEXT, "")
    consume_enable: bool = member(FLAG, True)
    consume_from_min_enable: bool = member(FLAG, True)
    consume_broadcast_enable: bool = member(FLAG, True)
    consume_message_orderly: bool = member(FLAG, False)
    retry_queue_nums: int = member(INT, 1)
    retry_max_times: int = member(INT, 16)
    group_retry_policy: GroupRetryPolicy = member(body_of(GroupRetryPolicy))
    broker_id: int = member(LONG, 0)
    which_broker_when_consume_slowly: int = member(LONG, 1)
    notify_consumer_ids_changed_enable: bool = member(FLAG, True)
    group_sys_flag: int = member(INT, 0)
    consume_timeout_minute: int = member(INT, 15)
    subscription_data_set: list[SimpleSubscriptionData] | None = member(list_of(body_of(SimpleSubscriptionData)), None)
    attributes: dict[str, str] = member(map_of(TEXT))


@dataclass(slots=True)
class SubscriptionGroupList(Body):
    """Groups to create or change (225)."""

    group_config_list: list[SubscriptionGroupConfig] = member(list_of(body_of(SubscriptionGroupConfig)))


@dataclass(slots=True)
class SubscriptionGroupTable(Body):
    """All groups of a broker (201)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = member(map_of(body_of(SubscriptionGroupConfig)))
    forbidden_table: dict[str, dict[str, int]] = member(map_of(map_of(INT)))
    data_version: DataVersion = member(body_of(DataVersion))


@dataclass(slots=True)
class ConsumerIdList(Body):
    """The members of a consumer group (38)."""

    consumer_id_list: list[str] = member(list_of(TEXT))
