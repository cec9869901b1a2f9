import os
from dataclasses import dataclass, field

import pytest

from skylark.mqcommon.options.environment import OF_CLIENTS
from skylark.spark_connector.parallelism import VARIABLE, parallelism, publish


@dataclass
class Conf:
    given: dict[str, str]

    def get(self, name: str, default: str) -> str:
        return self.given.get(name, default)


@dataclass
class Context:
    """The part of a SparkContext that `publish` reads."""

    defaultParallelism: int
    given: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def getConf(self) -> Conf:
        return Conf({f"spark.{name}": text for name, text in self.given.items()})


@pytest.mark.parametrize(
    ("there", "given", "told"),
    [
        (2, {}, 2),
        # Executors may come later than the session.
        (2, {"executor.instances": "5", "executor.cores": "4"}, 20),
        (2, {"cores.max": "12"}, 12),
        (2, {"dynamicAllocation.maxExecutors": "10", "executor.cores": "8"}, 80),
        (2, {"dynamicAllocation.maxExecutors": str(2**31 - 1), "executor.cores": "8"}, 2),
        (64, {"executor.instances": "2"}, 64),
    ],
)
def test_planning_is_told_how_much_runs_at_once(
    monkeypatch: pytest.MonkeyPatch, there: int, given: dict[str, str], told: int
) -> None:
    context = Context(there, given)
    publish(context)  # type: ignore[arg-type]  # of a SparkContext only what is used
    monkeypatch.setenv(VARIABLE, context.environment[VARIABLE])
    assert parallelism() == told


def test_untold_the_drivers_machine_stands_for_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert parallelism() == os.cpu_count()


def test_daemons_let_the_variable_pass() -> None:
    assert {VARIABLE} == OF_CLIENTS
