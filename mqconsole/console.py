"""The console as a whole: its connections, the collector, the people, and the server for browsers."""

import logging
from functools import partial
from secrets import token_bytes

import trio

from skylark import Admin, Client
from skylark.mqconsole.options import ConsoleOptions
from skylark.mqconsole.people.people import People
from skylark.mqconsole.people.person import Cluster, Person
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.watching.checkup import Checkup
from skylark.mqconsole.watching.collector import Collector
from skylark.mqconsole.web.groups import add_groups
from skylark.mqconsole.web.http_server import HttpServer
from skylark.mqconsole.web.login import add_login
from skylark.mqconsole.web.members import add_members
from skylark.mqconsole.web.messages import add_messages
from skylark.mqconsole.web.overview import add_overview
from skylark.mqconsole.web.searching import add_searching
from skylark.mqconsole.web.site import Site
from skylark.mqconsole.web.system import add_system, findings_for
from skylark.mqconsole.web.topics import add_topics
from skylark.remoting.net.sockets import listen
from skylark.remoting.net.tls.server import TlsListener, TlsServer
from skylark.remoting.net.tls.settings import ENFORCING, ServerTls
from skylark.remoting.protocol.signature import Credentials

logger = logging.getLogger(__name__)


class Console:
    """One console: ``run`` serves browsers, in a nursery, until ``stop``."""

    def __init__(self, options: ConsoleOptions, cluster: Cluster, credentials: Credentials | None) -> None:
        self._options = options
        self._cluster = cluster
        self._credentials = credentials
        self._stopping = trio.Event()

    def stop(self) -> None:
        """Stop listening, and let ``run`` return."""
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
            # The figure at the Doctor tab is found with the console's own account, as the lists are.
            own = Person("console", Role.ADMIN, cluster, client, self._credentials)
            checkup = Checkup(collector, partial(findings_for, own))
            nursery.start_soon(checkup.run)
            site = make_site(people, collector, checkup, self._options)
            tls = server_tls(self._options)
            listeners = await listen(self._options.bind_address, self._options.listen_port)
            if tls is not None:
                nursery.start_soon(tls.watch)
                listeners = [TlsListener(listener, tls) for listener in listeners]
            scheme = "http" if tls is None else "https"
            task_status.started(f"{scheme}://{listeners[0].address}")
            await HttpServer(site.app, scheme).serve(listeners, self._stopping)
            nursery.cancel_scope.cancel()


def server_tls(options: ConsoleOptions) -> TlsServer | None:
    """The console's certificate, if it has one. UserError when the certificate cannot be used. Blocks."""
    if not options.https_cert_file:
        return None
    return TlsServer(ServerTls(ENFORCING, options.https_cert_file, options.https_key_file))


def make_site(people: People, collector: Collector, checkup: Checkup, options: ConsoleOptions) -> Site:
    """The application with all of its pages."""
    site = Site(people, collector, checkup, options)
    for add in (add_login, add_overview, add_topics, add_groups, add_members, add_messages, add_searching, add_system):
        add(site)
    return site
