"""The official Python producer, as its users write it. Reads JSON from stdin and prints JSON."""

import json
import os
import sys
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer

asked = json.load(sys.stdin)
if "ca_file" in asked:
    # The client has no argument for it.
    os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = asked["ca_file"]
credentials = Credentials(*asked.get("credentials", ()))
configuration = ClientConfiguration(asked["endpoints"], credentials, request_timeout=30)
producer = Producer(configuration, (asked["topic"],), tls_enable="ca_file" in asked)
results = []
try:
    producer.startup()
except Exception as error:
    sys.stdout.write(json.dumps([{"error": str(error)}]) + "\n")
    sys.exit()
for described in asked["messages"]:
    message = Message()
    message.topic = asked["topic"]
    message.body = described["body"].encode()
    if "tag" in described:
        message.tag = described["tag"]
    if "key" in described:
        message.keys = described["key"]
    for name, value in described.get("properties", {}).items():
        message.add_property(name, value)
    if "group" in described:
        message.message_group = described["group"]
    if "priority" in described:
        message.priority = described["priority"]
    if "delay_s" in described:
        message.delivery_timestamp = int(time.time()) + described["delay_s"]
    try:
        receipt = producer.send(message)
        result = {"id": receipt.message_id, "offset": receipt.offset, "recall": receipt.recall_handle}
        if described.get("recalled"):
            result["recalled"] = producer.recall_message(asked["topic"], receipt.recall_handle)
        results.append(result)
    except Exception as error:
        results.append({"error": str(error)})
producer.shutdown()
sys.stdout.write(json.dumps(results) + "\n")
