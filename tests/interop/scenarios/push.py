"""The C++ push consumer tells each message in a line as it comes, until standard input ends.

With ``failures`` its callback fails for messages that were delivered again less often than that. The library calls
back for the messages of a batch until one fails, and then gives the whole batch back.
"""

import sys
from typing import Any

from rocketmq.client import PushConsumer, RecvMessage, _CConsumeStatus, _to_bytes, dll, ffi_check

from tests.interop.scenarios.report import asked, described, sign, tell


def main() -> None:
    task = asked()
    consumer = PushConsumer(task["group"], orderly=task.get("orderly", False))
    consumer.set_namesrv_addr(task["nameserver"])
    sign(consumer, task)
    consumer.set_thread_count(1)
    failures = task.get("failures", 0)

    def handle(_: Any, handle_: Any) -> int:
        message = RecvMessage(handle_)
        tell(described(message))
        failed = message.reconsume_times < failures
        return int((_CConsumeStatus.RECONSUME_LATER if failed else _CConsumeStatus.CONSUME_SUCCESS).value)

    # Not `subscribe`: it answers a callback that raises with a success.
    ffi_check(dll.Subscribe(consumer._handle, _to_bytes(task["topic"]), _to_bytes(task.get("expression", "*"))))
    consumer._register_callback(handle)
    consumer.start()
    try:
        sys.stdin.read()
    finally:
        consumer.shutdown()
    tell("shut down")


if __name__ == "__main__":
    main()
