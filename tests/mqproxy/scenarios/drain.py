"""The official Python SimpleConsumer or PushConsumer consumes until its stdin is closed. Its first line is JSON.

Prints a line for each message that it got, and for each message whose acknowledgement was answered. Times are by the
monotonic clock in ns: ``asked`` before the proxy was asked, ``at`` when its answer was there.
"""

import json
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    MessageListener,
    PushConsumer,
    SimpleConsumer,
)


def put(line):  # type: ignore[no-untyped-def]
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


asked = json.loads(sys.stdin.readline())
stopping = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
configuration = ClientConfiguration(asked["endpoints"], Credentials())
subscriptions = {asked["topic"]: FilterExpression()}


def say(kind, asked_ns, body):  # type: ignore[no-untyped-def]
    line = {"kind": kind, "asked": asked_ns, "at": time.monotonic_ns(), "body": body}
    put(line)


class Listener(MessageListener):
    def consume(self, message):  # type: ignore[no-untyped-def]
        threading.Event().wait(asked.get("handler_s", 0))
        say("got", time.monotonic_ns(), message.body.decode())
        return ConsumeResult.SUCCESS


def receive(consumer):  # type: ignore[no-untyped-def]
    asked_ns = time.monotonic_ns()
    for message in consumer.receive(8, asked["invisible_s"]) or []:
        say("got", asked_ns, message.body.decode())
        consumer.ack(message)
        say("acked", asked_ns, message.body.decode())


if asked["push"]:
    consumer = PushConsumer(configuration, asked["group"], Listener(), subscriptions)
    consumer.startup()
    stopping.wait()
else:
    consumer = SimpleConsumer(configuration, asked["group"], subscriptions, 2)
    consumer.startup()
    while not stopping.is_set():
        try:
            receive(consumer)
        except Exception as error:
            put({"error": repr(error)})
            stopping.wait(0.1)
consumer.shutdown()
