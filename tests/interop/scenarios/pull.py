"""The C++ pull consumer reads all queues of a topic from the start, and tells the messages in one line."""

from typing import Any

from rocketmq.client import PullConsumer

from tests.interop.scenarios.report import asked, described, sign, tell


class AllBrokersPullConsumer(PullConsumer):
    """The wheel remembers offsets by topic and queue id: with two brokers it would skip messages of the second."""

    def _get_mq_key(self, mq: Any) -> tuple[bytes, bytes, int]:
        return mq.topic, mq.brokerName, mq.queueId


def main() -> None:
    task = asked()
    consumer = AllBrokersPullConsumer(task["group"])
    consumer.set_namesrv_addr(task["nameserver"])
    sign(consumer, task)
    consumer.start()
    try:
        messages = consumer.pull(task["topic"], task.get("expression", "*"))
        tell([described(message, task.get("property_names", ())) for message in messages])
    finally:
        consumer.shutdown()


if __name__ == "__main__":
    main()
