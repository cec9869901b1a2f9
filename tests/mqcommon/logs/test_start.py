"""The log of a process whose stderr nobody reads."""

import subprocess
import sys

STUCK = """
import logging
from mqcommon.logs import writer
from mqcommon.logs.options import LogOptions
from mqcommon.logs.start import start_log

writer.CLOSE_TIMEOUT_S = 0.1
log = start_log(LogOptions())
for number in range(3_000):
    logging.getLogger("x").info("line %d %s", number, "x" * 200)
log.close()
print("done")
"""


def test_a_process_ends_though_nobody_reads_its_log() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.read() == "done\n"
    assert process.wait(60) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
