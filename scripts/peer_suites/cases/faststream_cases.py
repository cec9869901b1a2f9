"""The programs of FastStream's README, with RocketBroker in place of KafkaBroker."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skylark import Message
from skylark.sdk.blocking import Producer, SimpleConsumer

NAMESERVER = os.environ["PEER_NAMESERVER"]
BROKER = "from skylark.sdk.integrations.faststream import RocketBroker as KafkaBroker"
TESTING = "from skylark.sdk.integrations.faststream.testing import TestRocketBroker as TestKafkaBroker"
ROUTER = "from skylark.sdk.integrations.faststream.fastapi import RocketRouter as KafkaRouter"
REPLACED = {
    "from faststream.kafka import KafkaBroker": BROKER,
    "from faststream.kafka import TestKafkaBroker": TESTING,
    "from faststream.kafka.fastapi import KafkaRouter": ROUTER,
    'KafkaBroker("localhost:9092")': f'KafkaBroker("{NAMESERVER}", group="readme")',
    'KafkaRouter("localhost:9092")': f'KafkaRouter("{NAMESERVER}", group="readme-fastapi")',
    "KafkaBroker(serializer=": f'KafkaBroker("{NAMESERVER}", group="readme", serializer=',
}
TIMEOUT_S = 60


def blocks() -> list[str]:
    """The Python programs of the README; those with [Broker] are templates."""
    text = Path("README.md").read_text(encoding="utf-8")
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "[Broker]" not in block]


def block(*has: str) -> str:
    (found,) = [each for each in blocks() if all(text in each for text in has)]
    return found


APPS = [each for each in blocks() if "app = FastStream(" in each]


@pytest.mark.parametrize("number", range(len(APPS)))
def test_an_application_consumes_and_publishes(number: int) -> None:
    Path(f"readme_{number}.py").write_text(APPS[number], encoding="utf-8")
    command = [sys.executable, "-m", "faststream", "run", f"readme_{number}:app"]
    user = f"John {number}"
    with subprocess.Popen(command) as process:
        try:
            with (
                SimpleConsumer(NAMESERVER, group=f"out-{number}", subscriptions={"out": "*"}) as consumer,
                Producer(NAMESERVER) as producer,
            ):
                producer.send(Message("in", f'{{"user": "{user}", "user_id": 7}}'.encode()))
                deadline = time.monotonic() + TIMEOUT_S
                found: list[str] = []
                while not any(user in text and text.endswith(" registered") for text in found):
                    assert time.monotonic() < deadline and process.poll() is None, found
                    for message in consumer.receive(wait_ms=1000):
                        found.append(message.body.decode())
                        consumer.ack(message)
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
    assert process.returncode == 0


def test_the_tests_of_the_application_pass() -> None:
    tests = block("async def test_correct")
    Path("test_readme.py").write_text(f"{APPS[1]}\n{tests}", encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_readme.py"], capture_output=True, text=True
    )
    assert run.returncode == 0 and "2 passed" in run.stdout, run.stdout


def test_a_schema_is_generated() -> None:
    Path("readme_schema.py").write_text(APPS[0], encoding="utf-8")
    command = [sys.executable, "-m", "faststream", "docs", "gen", "readme_schema:app", "--out", "schema.json"]
    subprocess.run(command, check=True)
    assert '"in' in Path("schema.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", ["MsgSpecSerializer", "base_dep", "from aiohttp import web", "from fastapi import FastAPI"]
)
def test_a_program_is_accepted(text: str) -> None:
    names: dict[str, Any] = {"__name__": "readme"}
    if text == "base_dep":  # it adds a handler to the broker of the application
        exec(APPS[0], names)
    exec(block(text), names)
