"""A group that fails on messages, so that they become dead letters, and later gets them again."""

from collections.abc import Callable
from typing import Any

from skylark import Admin, ConsumeFrom, Producer, PushConsumer, RetryPolicy
from skylark.mqcommon.message.message import Message, MessageExt
from tests.sdk.fakes import until
from tests.support.in_process import Servers, until_known

AT_ONCE = RetryPolicy(dead_letter_on=Exception)


def consumer(cluster: Servers, handler: Callable[[MessageExt], Any], group: str = "g", **more: Any) -> PushConsumer:
    return PushConsumer(
        cluster.nameserver, group=group, subscriptions={"one": "*"}, handler=handler,
        consume_from=ConsumeFrom.FIRST_OFFSET, **more,
    )  # fmt: skip


async def killed(cluster: Servers, *bodies: bytes, **more: Any) -> list[str]:
    """Send these to topic one, where group g fails on them; the ids of the dead letters."""

    def fail(message: MessageExt) -> None:
        raise ValueError(f"no {message.body.decode()} for me")

    async with Producer(cluster.nameserver) as producer:
        ids = [(await producer.send(Message("one", body, keys=f"k-{body.decode()}"))).msg_id for body in bodies]
    async with consumer(cluster, fail, retry=AT_ONCE, **more) as made:
        await until(lambda: made.failed == len(bodies) and made.cached == 0)
    async with Admin(cluster.nameserver) as admin:
        await until_known(admin, "%DLQ%g")
        await until_known(admin, "%RETRY%g")
    return ids


class Group:
    """The messages that group g gets from now on."""

    def __init__(self, cluster: Servers, **more: Any) -> None:
        self.got: list[MessageExt] = []
        self.consumer = consumer(cluster, self.got.append, **more)

    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.got)
