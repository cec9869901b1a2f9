"""The programs of the Node client's README: TypeScript, whose types are taken out."""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROXY = os.environ["PEER_PROXY"]
README = Path("node_modules/rocketmq-client-nodejs/README.md")
TYPES = re.compile(r", type \w+|: MessageView|: Promise<ConsumeResult>")
# The client is CommonJS; its names cannot be imported one by one.
IMPORT = re.compile(r"import (\{.*\}) from ('.*');")
TIMEOUT_S = 60


def program(*has: str) -> str:
    """The only program of the README with these texts, as JavaScript."""
    text = README.read_text(encoding="utf-8")
    (found,) = [each for each in re.findall(r"```ts\n(.*?)```", text, re.DOTALL) if all(one in each for one in has)]
    found = IMPORT.sub(r"import client from \2;\nconst \1 = client;", TYPES.sub("", found))
    return found.replace("127.0.0.1:8081", PROXY)


@contextmanager
def running(name: str, text: str) -> Iterator["subprocess.Popen[str]"]:
    """The program; most of the README's do not end by themselves."""
    path = Path(f"{name}.mjs")
    path.write_text(text, encoding="utf-8")
    process = subprocess.Popen(
        [shutil.which("node") or "node", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    killer = threading.Timer(TIMEOUT_S, process.kill)
    killer.start()
    try:
        yield process
    finally:
        killer.cancel()
        process.kill()
        process.communicate()


def until_said(process: "subprocess.Popen[str]", wanted: str) -> None:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if wanted in line:
            return
    pytest.fail(f"it did not say {wanted!r}, but:\n{''.join(said)}")


def test_a_message_is_sent_and_received_by_a_simple_consumer() -> None:
    with (
        running("simple", program("new SimpleConsumer")) as consumer,
        running("send", program("const receipt", "TopicTest")) as sender,
    ):
        until_said(sender, "messageId")
        until_said(consumer, "got 1 messages")
        until_said(consumer, 'body=\'{"hello":"rocketmq-client-nodejs world')


def test_a_delayed_message_is_recalled() -> None:
    with running("recall", program("recallMessage")) as process:
        until_said(process, "Message recalled successfully")


def test_a_push_consumer_receives() -> None:
    send = program("const receipt", "TopicTest").replace("TopicTest", "yourTopic")
    with running("push", program("new PushConsumer")) as consumer:
        until_said(consumer, "PushConsumer started")
        with running("send-again", send) as sender:
            until_said(sender, "messageId")
            until_said(consumer, 'Received message: {"hello":"rocketmq-client-nodejs world')
