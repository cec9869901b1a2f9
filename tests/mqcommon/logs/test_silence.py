"""The SDK warns a program without logging; the daemons of a test cluster do not, as their test looks at them itself."""

import subprocess
import sys

import pytest

WARN = """
import logging
{setup}
import trio
from sdk import Producer
from sdk.testing import Cluster

for name in ("mqcommon.x", "remoting.net.client", "sdk.client", "broker.x", "namesrv.x"):
    logging.getLogger(name).warning("a warning of %s", name)
"""


@pytest.mark.parametrize(("setup", "lines"), [("", 3), ("logging.basicConfig()", 5)])
def test_warnings_of_daemons_in_a_test_are_shown_to_those_who_set_up_logging(setup: str, lines: int) -> None:
    run = subprocess.run([sys.executable, "-c", WARN.format(setup=setup)], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr.count("a warning of")) == ("", lines)
    assert setup or "broker.x" not in run.stderr
