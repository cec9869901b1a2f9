"""Random schedules of work, full disks, broken disks, kills and power losses: nothing durable is lost, none made up."""

from collections.abc import Iterable

import pytest

from tests.broker.store.schedule import Schedule
from tests.support.histories import run


@pytest.mark.histories()
def test_nothing_durable_is_lost(seeds: Iterable[int]) -> None:
    run(Schedule, seeds)
