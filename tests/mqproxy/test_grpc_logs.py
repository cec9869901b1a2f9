"""What gRPC writes to the log about calls of strangers."""

import logging
import sys

import pytest

from skylark.mqproxy.grpc_logs import CountedLines, quieten


def test_the_core_writes_nothing_unless_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("grpc._cython.cygrpc"), "filters", [])
    environment: dict[str, str] = {}
    quieten(environment)
    assert environment == {"GRPC_VERBOSITY": "NONE"}
    environment = {"GRPC_VERBOSITY": "DEBUG"}
    quieten(environment)
    assert environment == {"GRPC_VERBOSITY": "DEBUG"}


def test_texts_that_are_not_utf_8_are_counted_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    logger = logging.getLogger("test of gRPC")
    logger.addFilter(CountedLines(lambda: now_s))

    def call() -> None:
        try:
            (b"\xff" * 3_000).decode()
        except UnicodeDecodeError:
            logger.exception("Invalid encoding on %s", b"\xff" * 3_000)

    for _ in range(5):
        call()
    now_s += 61.0
    call()
    for _ in range(3):
        logger.error("ExecuteBatchError raised in core by servicer method [/again]", exc_info=ValueError("gone"))
    logger.error("another error %s", "x", exc_info=sys.exc_info())
    assert caplog.messages == [
        "calls had 1 texts that are not UTF-8", "calls had 5 texts that are not UTF-8",
        "1 calls broke off before they were answered", "another error x",
    ]  # fmt: skip
    assert all(record.exc_info is None for record in caplog.records[:3])
