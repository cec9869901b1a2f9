"""The official Python producer of transactions, as its users write it. Reads lines of JSON from stdin, prints JSON.

The first line describes the transactions and what the checker answers; after it has begun them the program prints their
results, and stays until stdin is closed. Then it prints what it was asked.
"""

import json
import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker
from rocketmq.grpc_protocol import TransactionResolution

asked = json.loads(sys.stdin.readline())
checked = []


class Checker(TransactionChecker):
    def check(self, message):  # type: ignore[no-untyped-def]
        body = message.body.decode()
        checked.append({"body": body, "id": message.message_id, "properties": message.properties, "tag": message.tag})
        return TransactionResolution.Value(asked["answers"].get(body, "ROLLBACK"))


configuration = ClientConfiguration(asked["endpoints"], Credentials(), request_timeout=30)
producer = Producer(configuration, (asked["topic"],), checker=Checker())
producer.startup()
if asked.get("tells_id"):
    sys.stdout.write(json.dumps(producer.client_id) + "\n")
results = []
for described in asked["messages"]:
    message = Message()
    message.topic = asked["topic"]
    message.body = described["body"].encode()
    message.tag = "tea"
    message.add_property("shop", "north")
    try:
        transaction = producer.begin_transaction()
        receipt = producer.send(message, transaction)
        if "end" in described:
            getattr(transaction, described["end"])()
        results.append({"id": receipt.message_id, "transaction": receipt.transaction_id})
    except Exception as error:
        results.append({"error": str(error)})
sys.stdout.write(json.dumps(results) + "\n")
sys.stdout.flush()
sys.stdin.read()
sys.stdout.write(json.dumps(checked) + "\n")
sys.stdout.flush()
producer.shutdown()
