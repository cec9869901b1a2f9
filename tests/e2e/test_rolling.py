"""Rolling updates as Kubernetes does them: pods are replaced by turns, at other addresses, while clients work."""

import sys
from pathlib import Path

import pytest

from scripts.rolling.clusters import MODES, SINGLE
from scripts.rolling.update import Plan, Row, roll, table
from tests.support.amounts import rounds_or
from tests.support.rounds import report

FEW = Plan(rounds=2, senders=10, pause_s=0.05, down_s=0.1, quiet_sends=50)
ROUNDS = 20


async def rolled(mode: str, home: Path, plan: Plan) -> Row:
    row = await roll(mode, home, plan, lambda text: sys.stdout.write(f"{text}\n"))
    sys.stdout.write(f"{table([row])}\n")
    report(plan.rounds, acknowledged=len(row.figures.acknowledged), lost=row.figures.lost)
    return row


async def test_a_single_broker_and_its_nameservers_move_and_no_send_fails(tmp_path: Path) -> None:
    row = await rolled(SINGLE, tmp_path, FEW)
    assert row.figures.problems() == "" and len(row.figures.acknowledged) > 2 * FEW.quiet_sends


@pytest.mark.fault("updates", "all pods are replaced by turns", "{mode}")
@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
async def test_updates_again_and_again_cost_no_send(mode: str, tmp_path: Path) -> None:
    row = await rolled(mode, tmp_path, Plan(rounds_or(ROUNDS), down_s=0.5))
    assert row.figures.problems() == ""
