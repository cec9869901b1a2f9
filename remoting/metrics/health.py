"""/healthz and /readyz on a port of their own (``healthPort``), for probes that must not reach the metrics.

They are on the port of the metrics, too. h11 is imported only where there are pages.
"""

import logging
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import TYPE_CHECKING

import trio

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import missing_extra
from skylark.mqcommon.metrics.options import HealthOptions
from skylark.remoting.net.sockets import listen

if TYPE_CHECKING:
    from skylark.remoting.metrics.http_pages import Page, Pages

logger = logging.getLogger(__name__)

#: The pages that cost little: they are answered while another one is being made.
HEALTH_PAGES = ("/healthz", "/readyz")
DEFAULT_HOST = "127.0.0.1"


class Health:
    """The health pages of a daemon. ``unready`` says why the daemon is not ready, "" if it is."""

    def __init__(self, options: HealthOptions, unready: Callable[[], str]) -> None:
        self._options = options
        self._unready = unready

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the pages until cancelled. UserError when the port is in use, or h11 is missing."""
        options = self._options
        if options.health_port < 0:
            task_status.started()
            return
        place = (options.health_host, options.health_port, "healthPort")
        await serve_pages(place, self.pages(), HEALTH_PAGES, "health", task_status)

    def pages(self) -> "Pages":
        """The pages /healthz and /readyz."""
        return dict(zip(HEALTH_PAGES, (self._healthy, self._ready), strict=True))

    async def _healthy(self, accept: str) -> "Page":
        from skylark.remoting.metrics.http_pages import text_page

        return text_page(HTTPStatus.OK, "ok")

    async def _ready(self, accept: str) -> "Page":
        from skylark.remoting.metrics.http_pages import text_page

        why = self._unready()
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, why or "ok")


async def serve_pages(
    place: tuple[str, int, str], pages: "Pages", cheap: Collection[str], extra: str, task_status: trio.TaskStatus[None]
) -> None:
    """Serve ``pages`` at ``place``, (host, port, the option that sets the port), until cancelled.

    UserError when the port is in use, or when ``extra`` is not installed.
    """
    host, port, key = place
    try:
        from skylark.remoting.metrics.http_pages import PageServer
    except ImportError as error:
        raise UserError(missing_extra(key, extra, error)) from None
    listeners = await listen(host.strip() or DEFAULT_HOST, port, key)
    logger.info("%s at http://%s%s", extra, listeners[0].address, ", ".join(pages))
    server = PageServer(pages, cheap)
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(server.serve, listener)
        task_status.started()
