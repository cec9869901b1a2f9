"""Consoles for tests: the real one on a free port of loopback, and somebody who asks it over HTTP."""

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket
from quart_trio import QuartTrio

from skylark import Admin, ConsumeFrom, Credentials, Message, Producer, PushConsumer, RetryPolicy
from skylark.mqcommon.message.message import MessageExt
from skylark.mqconsole.console import Console, make_site
from skylark.mqconsole.options import ConsoleOptions
from skylark.mqconsole.people.people import People
from skylark.mqconsole.people.person import Cluster
from skylark.mqconsole.watching.checkup import Checkup
from skylark.mqconsole.watching.collector import Collector
from skylark.mqconsole.web.site import Site
from tests.support.waiting import until

TOKEN = re.compile(r'name="token" value="([^"]+)"')


class CompiledTemplates(BytecodeCache):
    """Templates that a console has compiled, for the next consoles of this process."""

    def __init__(self) -> None:
        self._by_key: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._by_key:
            bucket.bytecode_from_string(self._by_key[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._by_key[bucket.key] = bucket.bytecode_to_string()


QuartTrio.jinja_options = {"bytecode_cache": CompiledTemplates()}


class Browser:
    """Keeps cookies, and fills the token into forms, as a browser does."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.token = ""

    async def get(self, path: str, **more: Any) -> httpx.Response:
        answer = await self.client.get(path, **more)
        if found := TOKEN.search(answer.text):
            self.token = found[1]
        return answer

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        return await self.client.post(path, data={"token": self.token, **fields}, headers={"Referer": self.base + "/"})

    @property
    def base(self) -> str:
        return str(self.client.base_url).rstrip("/")

    async def log_in(self, name: str, secret: str, **fields: str) -> httpx.Response:
        """Log in with a form that was loaded before."""
        await self.get("/login")
        answer = await self.post("/login", name=name, secret=secret, **fields)
        if answer.status_code == 303:
            await self.get("/topics")
        return answer


@asynccontextmanager
async def browser(address: str, ca_file: str | None = None) -> AsyncIterator[Browser]:
    # Without TLS no certificates of authorities have to be loaded, which takes longer than most tests.
    verify = ssl.create_default_context(cafile=ca_file) if ca_file else False
    async with httpx.AsyncClient(base_url=address, timeout=60, verify=verify) as client:
        yield Browser(client)


@asynccontextmanager
async def console(nameserver: str, credentials: Credentials | None = None, **options: Any) -> AsyncIterator[str]:
    """The address of a console that runs in the block."""
    given = ConsoleOptions(**{"listen_port": 0, "poll_interval": 2, **options})
    # A page tells what has not answered in time; on a busy machine that may be anything.
    made = Console(given, Cluster(nameserver, 60_000, None, 0.0), credentials)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(made.run)
        made.stop()


def lonely_site(people: People, options: ConsoleOptions) -> Site:
    """The application of a console that asks nobody."""
    collector = Collector(Admin("127.0.0.1:9"), 5, 5)

    async def no_findings() -> list[dict[str, Any]]:
        return []

    return make_site(people, collector, Checkup(collector, no_findings), options)


async def give_up(nameserver: str, group: str, topic: str, body: bytes) -> str:
    """Send a message that the group fails on: the unique key of its dead letter."""

    def fail(message: MessageExt) -> None:
        raise ValueError(f"no {message.body.decode()} for me")

    async with Producer(nameserver, group="P") as producer:
        msg_id = (await producer.send(Message(topic, body))).msg_id
    async with PushConsumer(
        nameserver, group=group, subscriptions={topic: "*"}, handler=fail, consume_from=ConsumeFrom.FIRST_OFFSET,
        retry=RetryPolicy(dead_letter_on=Exception),
    ) as consumer:  # fmt: skip
        await until(lambda: consumer.failed > 0 and consumer.cached == 0, "the message is a dead letter")
    return msg_id
