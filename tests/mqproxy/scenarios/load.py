"""The official Python producer sends until its stdin is closed. Its first line is JSON; prints a line for each send."""

import json
import sys
import threading

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def put(line):  # type: ignore[no-untyped-def]
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


asked = json.loads(sys.stdin.readline())
stopping = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
producer = Producer(ClientConfiguration(asked["endpoints"], Credentials()), (asked["topic"],))
producer.startup()
number = 0
while not stopping.wait(asked["pause_s"]):
    message = Message()
    message.topic = asked["topic"]
    message.body = f"{asked['name']}-{number}".encode()
    number += 1
    try:
        producer.send(message)
    except Exception as error:
        put({"error": f"{message.body.decode()}: {error!r}"})
    else:
        put({"sent": message.body.decode()})
producer.shutdown()
