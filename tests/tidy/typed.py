"""What type checkers see of the SDK, for trio, asyncio and threads: mypy reads this file, nothing runs it.

A comment that ignores an error is an error itself where there is none to ignore.
"""

from typing import assert_type

import skylark
import skylark.aio
import skylark.blocking
from skylark import Message


async def trio_program() -> None:
    async with skylark.Client("h:1") as client, skylark.Producer(client) as producer, skylark.Admin("h:1") as admin:
        assert_type((await producer.send(Message("orders", b"tea"))).queue_offset, int)
        await producer.send(b"tea")  # type: ignore[arg-type]
        assert_type(await admin.topic_list(), list[str])
        assert_type(await admin.group_exists(group="g"), bool)
        skylark.Producer(skylark.blocking.Client())  # type: ignore[arg-type]


async def asyncio_program() -> None:
    async with (
        skylark.aio.Client("h:1") as client,
        skylark.aio.Producer(client) as producer,
        skylark.aio.Admin("h:1") as admin,
    ):
        assert_type((await producer.send(Message("orders", b"tea"))).queue_offset, int)
        await producer.send(b"tea")  # type: ignore[arg-type]
        assert_type(await admin.topic_list(), list[str])
        assert_type(await admin.group_exists(group="g"), bool)
        skylark.aio.Producer(skylark.Client())  # type: ignore[arg-type]


def program_in_threads() -> None:
    with skylark.blocking.Client("h:1") as client, skylark.blocking.Producer(client) as producer:
        assert_type(producer.send(Message("orders", b"tea")).queue_offset, int)
        producer.send(b"tea")  # type: ignore[arg-type]
        skylark.blocking.Producer(skylark.Client())  # type: ignore[arg-type]
    with skylark.blocking.Admin("h:1") as admin:
        assert_type(admin.topic_list(), list[str])
        assert_type(admin.group_exists(group="g"), bool)
