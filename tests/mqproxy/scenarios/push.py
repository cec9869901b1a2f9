"""The official Python PushConsumer, as its users write it. Reads JSON from stdin and prints JSON."""

import json
import sys
import threading

from rocketmq import ClientConfiguration, ConsumeResult, Credentials, FilterExpression, MessageListener, PushConsumer
from rocketmq.grpc_protocol import FilterType

asked = json.load(sys.stdin)
kinds = {"tag": FilterType.TAG, "sql": FilterType.SQL}
consumed = []
lock = threading.Lock()
done = threading.Event()


class Listener(MessageListener):
    def consume(self, message):  # type: ignore[no-untyped-def]
        threading.Event().wait(asked.get("handler_s", 0))
        with lock:
            body = message.body.decode()
            consumed.append({"body": body, "attempt": message.delivery_attempt, "group": message.message_group})
            if len(consumed) >= asked["count"]:
                done.set()
            return ConsumeResult.FAILURE if body in asked.get("failing", []) else ConsumeResult.SUCCESS


consumer = PushConsumer(
    ClientConfiguration(asked["endpoints"], Credentials(*asked.get("credentials", ()))),
    asked["group"],
    Listener(),
    {asked["topic"]: FilterExpression(asked.get("expression", "*"), kinds[asked.get("kind", "tag")])},
)
consumer.startup()
done.wait(15)
consumer.shutdown()
sys.stdout.write(json.dumps(consumed) + "\n")
