"""What type checkers see of the SDK, for trio, asyncio and threads: mypy reads this file, nothing runs it.

A comment that ignores an error is an error itself where there is none to ignore.
"""

from typing import assert_type

import skylark.sdk
import skylark.sdk.aio
import skylark.sdk.blocking
from skylark import Message


async def trio_program() -> None:
    async with sdk.Client("h:1") as client, sdk.Producer(client) as producer, sdk.Admin("h:1") as admin:
        assert_type((await producer.send(Message("orders", b"tea"))).queue_offset, int)
        await producer.send(b"tea")  # type: ignore[arg-type]
        assert_type(await admin.topic_list(), list[str])
        assert_type(await admin.group_exists(group="g"), bool)
        sdk.Producer(sdk.blocking.Client())  # type: ignore[arg-type]


async def asyncio_program() -> None:
    async with sdk.aio.Client("h:1") as client, sdk.aio.Producer(client) as producer, sdk.aio.Admin("h:1") as admin:
        assert_type((await producer.send(Message("orders", b"tea"))).queue_offset, int)
        await producer.send(b"tea")  # type: ignore[arg-type]
        assert_type(await admin.topic_list(), list[str])
        assert_type(await admin.group_exists(group="g"), bool)
        sdk.aio.Producer(sdk.Client())  # type: ignore[arg-type]


def program_in_threads() -> None:
    with sdk.blocking.Client("h:1") as client, sdk.blocking.Producer(client) as producer:
        assert_type(producer.send(Message("orders", b"tea")).queue_offset, int)
        producer.send(b"tea")  # type: ignore[arg-type]
        sdk.blocking.Producer(sdk.Client())  # type: ignore[arg-type]
    with sdk.blocking.Admin("h:1") as admin:
        assert_type(admin.topic_list(), list[str])
        assert_type(admin.group_exists(group="g"), bool)
