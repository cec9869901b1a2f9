import click
import pytest
from click.testing import CliRunner

from skylark.spark_connector.jobs.session import CONNECTION, task_error

FAILED = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0
Traceback (most recent call last):
  File "copy_topic.py", line 60, in run
sdk.SendFailed: no broker stored the message

\tat org.apache.spark.api.python.BasePythonRunner
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:"""


def test_what_a_task_raised_is_one_line() -> None:
    assert task_error(FAILED) == "sdk.SendFailed: no broker stored the message"
    assert task_error("lost") == "lost"


@click.command()
@click.option("--option", "options", **CONNECTION)
def show(options: dict[str, str]) -> None:
    click.echo(options)


def test_they_are_taken_as_they_are() -> None:
    shown = CliRunner().invoke(show, ["--option", "tls=true", "--option", "tlsKeyPassword=a=b"])
    assert shown.output == "{'tls': 'true', 'tlsKeyPassword': 'a=b'}\n"
    assert CliRunner().invoke(show, []).output == "{}\n"


@pytest.mark.parametrize("text", ["tls", "=true", ""])
def test_a_mistake_is_shown(text: str) -> None:
    shown = CliRunner().invoke(show, ["--option", text])
    assert shown.exit_code == 2
    assert f"{text!r} is not NAME=VALUE" in shown.output
