"""How many processor instructions a message costs the store alone, counted by valgrind whatever else runs.

    python -m bench.store_instructions [--json] [--n 10000] [--tree DIRECTORY]

One process does in a fixed order what a broker does at 10,000 messages a second: puts, a step of the index each 20
messages, a flush and a checkpoint, and the sealing of what is full, each 10,000. No clock and no event loop is in it,
so two runs differ by some thousandths, however busy the machine is. Two runs of bench/instructions.py, which counts a
whole broker, differ by a hundredth on a quiet machine.
`--tree` names another checkout, with a `.venv` of its own. The limit is the same without queues' sums, block sums and
the checkpoint's sum, if the checkout has them. Needs valgrind.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Row, row, show
from bench.instructions import counted_in, require_valgrind
from scripts.daemons import ROOT

# Messages between two flushes.
STEP = 10_000
# 128 bytes of body, and the properties of a client's send.
PROGRAM = """
import gc, importlib, os, subprocess, sys
from skylark.broker.store.log.residency import resident_only
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles

WARM_UP = 10_000
directory, count, with_sums = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
sealing = None
try:
    sums = importlib.import_module("skylark.broker.store.sums.growing_sums").GrowingSums
    parts = importlib.import_module("skylark.broker.tasks.block_sealing")
except ImportError:
    sums = parts = None
if sums is not None and not with_sums:
    sums.extend = lambda self, at, data: None
    MessageStore._tail_sum = lambda self, end: None
options = StoreOptions(directory, 1 << 26, index_slots=50_000, index_capacity=1_000_000)
store = MessageStore(OsFiles(), options, SystemClock(), bytes(8))
store.open()
if parts is not None and with_sums:
    sealing = parts.BlockSealing(store.log, lambda: store.log.flushed)
properties = b"UNIQ_KEY\\x01%032d\\x02WAIT\\x01true\\x02TAGS\\x01red\\x02KEYS\\x01key-%08d\\x02"
body, host = bytes(128), bytes(8)
gc.disable()
for number in range(WARM_UP + count):
    if number == WARM_UP:
        subprocess.run(["callgrind_control", "--instr=on", str(os.getpid())], check=True, capture_output=True)
    store.put("topic", number % 8, body, properties % (number, number), born_timestamp=1, born_host=host)
    if number % 20 == 19:
        with resident_only():
            store.build_index(100)
    if number % 10_000 == 9_999:
        store.flush()
        store.checkpoint(as_flushed=True)
        if sealing is not None and (work := sealing.due()):
            sealing.keep(work, sealing.crcs(work))
os._exit(0)
"""


def counted(tree: Path, count: int, *, with_sums: bool) -> int:
    """Instructions of a process in ``tree`` while it stores ``count`` messages."""
    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "callgrind"
        python = [str(tree / ".venv/bin/python"), "-P", "-c", PROGRAM]
        callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        tool = ["env", "PYTHONHASHSEED=0", *callgrind]
        command = [*tool, *python, f"{home}/store", str(count), str(with_sums)]
        ran = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
        found = counted_in(out)
        if ran.returncode or found is None:
            raise SystemExit(f"the store did not run in {tree}:\n{ran.stderr}")
        return found


def rows(tree: Path, n: int) -> Iterator[Row]:
    ours, limit = (counted(tree, n, with_sums=with_sums) / n for with_sums in (True, False))
    yield row("put, index, checkpoint and sealing, a message", "instr", [ours], [limit], n, smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=10_000, help=f"messages that are counted; a multiple of {STEP:,}")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose store is counted")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    if arguments.n <= 0 or arguments.n % STEP:
        parser.error(
            f"--n {arguments.n}: it must be a multiple of {STEP:,}, so that each flush and checkpoint is counted"
        )
    require_valgrind()
    show(rows(arguments.tree.resolve(), arguments.n), arguments.json)


if __name__ == "__main__":
    main()
