"""The process of an S3 server: moto, with answers that its owner may replace. tests/support/buckets.py starts it.

Run as a file. It prints its port, then ``ok`` for each line of stdin; it ends with stdin. A line is JSON:
``{"status": 503, "code": "SlowDown", "methods": ["PUT"], "times": 1}`` is the answer to the next requests; with
``"after": true`` the request is done before, so that its answer is lost. ``{}``: moto answers.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    # The head and the body of an answer are one write.
    wbufsize = -1

    def log(self, type: str, message: str, *args: object) -> None:
        pass


class Replaced:
    """Answers in place of the application when it was told so."""

    def __init__(self, application: Application) -> None:
        self.told: dict[str, Any] = {}
        self._application = application
        # Moto looks whether there is an object, and then writes it.
        self._conditional = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        told = self.told
        if not told or environ["REQUEST_METHOD"] not in (told["methods"] or [environ["REQUEST_METHOD"]]):
            return self._answer(environ, start_response)
        if told["times"] is not None:
            told["times"] -= 1
            self.told = told if told["times"] else {}
        if told["after"]:
            b"".join(self._answer(environ, lambda *args: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{told['code']}</Code><Message>as the test wants it</Message></Error>".encode()
        start_response(f"{told['status']} Replaced", [("Content-Length", str(len(body)))])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._application(environ, start_response)
        with self._conditional:
            return list(self._application(environ, start_response))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    replaced = Replaced(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, replaced, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _say(str(server.port))
    for line in sys.stdin:
        replaced.told = json.loads(line)
        _say("ok")


main()
