"""The C++ push consumer tells each message in a line as it comes, until standard input ends."""

import sys

from rocketmq.client import PushConsumer

from tests.interop.scenarios.report import asked, described, tell


def main() -> None:
    task = asked()
    consumer = PushConsumer(task["group"], orderly=task.get("orderly", False))
    consumer.set_namesrv_addr(task["nameserver"])
    consumer.set_thread_count(1)
    consumer.subscribe(task["topic"], lambda message: tell(described(message)), task.get("expression", "*"))
    consumer.start()
    try:
        sys.stdin.read()
    finally:
        consumer.shutdown()
    tell("shut down")


if __name__ == "__main__":
    main()
