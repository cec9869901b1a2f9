"""The console as a whole: its connections, the collector, the people, and the server for browsers."""

import logging
import ssl
from secrets import token_bytes

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from mqcommon.errors import ConfigError
from mqconsole.options import ConsoleOptions
from mqconsole.people.people import People
from mqconsole.people.person import Cluster
from mqconsole.watching.collector import Collector
from mqconsole.web.groups import add_groups
from mqconsole.web.login import add_login
from mqconsole.web.messages import add_messages
from mqconsole.web.overview import add_overview
from mqconsole.web.site import Site
from mqconsole.web.system import add_system
from mqconsole.web.topics import add_topics
from remoting.protocol.signature import Credentials
from sdk import Admin, Client

logger = logging.getLogger(__name__)

#: Requests that are being answered when the console stops have so long.
GRACE_S = 2.0
#: A connection of a browser that sends nothing is closed after this time.
IDLE_S = 60.0


class Console:
    """``run`` it in a nursery."""

    def __init__(self, options: ConsoleOptions, cluster: Cluster, credentials: Credentials | None) -> None:
        self._options = options
        self._cluster = cluster
        self._credentials = credentials
        self._stopping = trio.Event()

    def stop(self) -> None:
        """Stop to listen, and end."""
        self._stopping.set()

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`; started with the address for browsers."""
        cluster, timeout_s = self._cluster, self._cluster.timeout_ms / 1000
        async with (
            Client(
                cluster.namesrv, timeout_ms=cluster.timeout_ms, credentials=self._credentials, tls=cluster.tls
            ) as client,
            Admin(client, timeout_ms=cluster.timeout_ms) as admin,
            trio.open_nursery() as nursery,
        ):
            collector = Collector(admin, self._options.poll_interval, min(timeout_s, self._options.poll_interval))
            people = People(
                cluster,
                self._credentials,
                login=self._options.login,
                session_s=self._options.session_hours * 3600.0,
                secret=token_bytes(32),
                snapshot=lambda: collector.snapshot,
            )
            await nursery.start(people.run, client, admin)
            await nursery.start(collector.run)
            site = make_site(people, collector, self._options)
            binds = await nursery.start(self._serve, site)
            task_status.started(binds[0])
            await self._stopping.wait()
            nursery.cancel_scope.cancel()

    async def _serve(self, site: Site, *, task_status: trio.TaskStatus[list[str]]) -> None:
        try:
            await serve(site.app, self._config(), shutdown_trigger=self._stopping.wait, task_status=task_status)
        except (OSError, ssl.SSLError) as error:
            where = f"{self._options.bind_address}:{self._options.listen_port}"
            raise ConfigError(f"the console cannot listen on {where}: {error}") from None

    def _config(self) -> Config:
        options, config = self._options, Config()
        host = f"[{options.bind_address}]" if ":" in options.bind_address else options.bind_address
        config.bind = [f"{host}:{options.listen_port}"]
        config.certfile = options.https_cert_file or None
        config.keyfile = options.https_key_file or None
        config.graceful_timeout = GRACE_S
        config.keep_alive_timeout = IDLE_S
        config.include_server_header = False
        # Addresses of pages have names of topics and groups in them; the audit has what was changed.
        config.accesslog = None
        config.errorlog = logging.getLogger("mqconsole.server")
        return config


def make_site(people: People, collector: Collector, options: ConsoleOptions) -> Site:
    """The application with all of its pages."""
    site = Site(people, collector, options)
    for add in (add_login, add_overview, add_topics, add_groups, add_messages, add_system):
        add(site)
    return site
