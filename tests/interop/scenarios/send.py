"""The C++ producer sends what the test describes, each message in its way, and tells the results in one line.

With ``may_fail`` a send that fails has no result, and the next one follows.
"""

import queue
import time
from typing import Any

from rocketmq.client import Producer, SendResult
from rocketmq.exceptions import RocketMQException

from tests.interop.scenarios.report import DEADLINE_S, asked, made, sign, tell


def told(result: SendResult) -> dict[str, Any]:
    return {"status": result.status.name, "id": result.msg_id, "queue_offset": result.offset}


def send(producer: Producer, wanted: dict[str, Any]) -> dict[str, Any] | None:
    match wanted["how"]:
        case "sync":
            return told(producer.send_sync(made(wanted)))
        case "async":
            return told(sent_async(producer, wanted))
        case "orderly":
            return told(producer.send_orderly(made(wanted), wanted["shard"]))
        case "batch":
            return told(producer.send_batch([made(each) for each in wanted["messages"]]))
        case "oneway":
            producer.send_oneway(made(wanted))
        case "oneway orderly":
            producer.send_oneway_orderly(made(wanted), wanted["shard"])
        case how:
            raise ValueError(how)
    return None


def send_when_routed(producer: Producer, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The client's first look at the NameServer can fail on a busy machine; it has sent nothing then."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return send(producer, wanted)
        except RocketMQException as error:
            if "No route info" not in str(error) or time.monotonic() > deadline:
                raise


def sent_async(producer: Producer, wanted: dict[str, Any]) -> SendResult:
    outcomes: queue.SimpleQueue[SendResult | Exception] = queue.SimpleQueue()
    message = made(wanted)
    producer.send_async(message, outcomes.put, outcomes.put)
    outcome = outcomes.get(timeout=DEADLINE_S)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def main() -> None:
    task = asked()
    producer = Producer(task["group"])
    producer.set_namesrv_addr(task["nameserver"])
    sign(producer, task)
    if "credentials" in task:
        producer.set_session_credentials(*task["credentials"])
    producer.start()
    try:
        results = []
        for wanted in task["sends"]:
            try:
                results.append(send_when_routed(producer, wanted))
            except RocketMQException:
                if not task.get("may_fail"):
                    raise
                results.append(None)
            time.sleep(task.get("pause_s", 0))  # noqa: TID251  the pace of a load, in a process of its own
        tell(results)
    finally:
        producer.shutdown()


if __name__ == "__main__":
    main()
