"""The certificate of a server, loaded again when its files change; and the count of clients that got through or not.

Connections that are open stay as they are.
"""

import logging
import os

import trio

from mqcommon.errors import UserError
from remoting.net.tls.contexts import server_context
from remoting.net.tls.settings import ServerTls

logger = logging.getLogger(__name__)

# RocketMQ looks at the files as often.
INTERVAL_S = 0.5
# At most one log line in this time about clients that did not get through: anybody can send these.
LOG_S = 10.0

Stamps = list[tuple[int, int] | None]


class TlsServer:
    """``context`` is what the next clients get. UserError when the certificate cannot be used."""

    def __init__(self, settings: ServerTls) -> None:
        self.settings = settings
        self._files = [file for file in (settings.cert_file, settings.key_file, settings.ca_file) if file]
        # Before the files are read, so that a change in between is noticed.
        self._loaded = stamps(self._files)
        self.context = server_context(settings)
        self.handshakes = 0
        self.failures = 0
        self._logged_at = -LOG_S

    def failed(self, remote: str, reason: str) -> None:
        """A client did not get through."""
        self.failures += 1
        now = trio.current_time()
        if now >= self._logged_at + LOG_S:
            self._logged_at = now
            logger.warning(
                "client %s has no connection: %s (%d such clients, %d got through)",
                remote, reason, self.failures, self.handshakes,
            )  # fmt: skip

    async def watch(self) -> None:
        """Look at the files until cancelled. When new ones cannot be used, the old certificate stays."""
        settings = self.settings
        seen, failing = self._loaded, ""
        while True:
            await trio.sleep(INTERVAL_S)
            now = await trio.to_thread.run_sync(stamps, self._files)
            is_settled, seen = now == seen, now
            # A certificate and its key are two files: wait until neither changes any more.
            if now == self._loaded or not is_settled:
                continue
            self._loaded = now
            try:
                self.context = await trio.to_thread.run_sync(server_context, settings)
            except UserError as error:
                if str(error) != failing:
                    logger.error("the old TLS certificate stays in use: %s", error)
                failing = str(error)
            else:
                logger.info("TLS certificate %s loaded again", settings.cert_file)
                failing = ""


def stamps(files: list[str]) -> Stamps:
    """When each of ``files`` was changed, and its size; None for one that is not there. Blocks."""
    found: Stamps = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return found
