"""The official Python SimpleConsumer, as its users write it. Reads JSON from stdin and prints JSON."""

import json
import sys
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer
from rocketmq.grpc_protocol import FilterType

asked = json.load(sys.stdin)
kinds = {"tag": FilterType.TAG, "sql": FilterType.SQL}
expression = FilterExpression(asked.get("expression", "*"), kinds[asked.get("kind", "tag")])
consumer = SimpleConsumer(
    ClientConfiguration(asked["endpoints"], Credentials(*asked.get("credentials", ())), request_timeout=30),
    asked["group"],
    {asked["topic"]: expression},
    5,
)
consumer.startup()
received = []
deadline = time.monotonic() + 30
while len(received) < asked["count"] and time.monotonic() < deadline:
    for message in consumer.receive(32, asked.get("invisible_s", 10)) or []:
        received.append(
            {
                "body": message.body.decode(),
                "id": message.message_id,
                "tag": message.tag,
                "keys": sorted(message.keys),
                "properties": message.properties,
                "attempt": message.delivery_attempt,
                "group": message.message_group,
                "corrupted": message.corrupted,
            }
        )
        if message.delivery_attempt <= asked.get("give_back", 0):
            consumer.change_invisible_duration(message, 1)
        else:
            consumer.ack(message)
consumer.shutdown()
sys.stdout.write(json.dumps(received) + "\n")
