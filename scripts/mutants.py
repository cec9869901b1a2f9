"""Mutants: small mistakes in the core, each of which a test must notice.

    python -m scripts.mutants [--only TEXT]

Each mutant is put into a copy of the tree, and the tests that must notice it run there. Ends with exit code 1 if a
mutant is not noticed. All of them take a quarter of an hour. `tests/tidy` checks that each one still fits the code.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from scripts.packages import copy_tree


class Mutant(NamedTuple):
    """A mistake: ``old``, which stands once in ``file``, becomes ``new``, and then a test in ``tests`` must fail."""

    file: str
    old: str
    new: str
    tests: str


_INDEX = "broker/store/index"
_RAFT = "mqcommon/raft"
_SET = "broker/replication/autoswitch"
_DLEDGER = "broker/replication/dledger"

MUTANTS = (
    # Consensus.
    Mutant(f"{_RAFT}/raft.py", "return count // 2 + 1", "return max(count // 2, 1)", "tests/mqcommon/raft"),
    Mutant(f"{_RAFT}/raft.py", "if message.term < self.term:", "if message.term < 0:", "tests/mqcommon/raft"),
    Mutant(f"{_RAFT}/log.py", "if index <= self.commit:", "if index < 0:", "tests/sim/raft"),
    # What a set of brokers has confirmed, and how long its master may say so.
    Mutant(f"{_SET}/sync_set.py", "(self.members | (self.proposed or frozenset()))", "self.members", f"tests/{_SET}"),
    Mutant(f"{_SET}/sync_set.py", "if epoch <= self.epoch:", "if epoch < self.epoch:", f"tests/{_SET}"),
    Mutant(f"{_SET}/sync_set.py", "copy.end = max(copy.end, end)", "copy.end = end", f"tests/{_SET}"),
    Mutant(f"{_SET}/decisions.py", "if sent_at > self._ended_at:", "if True:", f"tests/{_SET}"),
    Mutant(f"{_SET}/decisions.py", "timeout_s * (1 - MARGIN)", "timeout_s", f"tests/{_SET}"),
    # The store.
    Mutant(
        "broker/store/log/valid_record.py", "properties[-1] == 0 and not any(", "properties[-1] == 0 and any(",
        "tests/broker/store/test_recovery.py",
    ),
    Mutant(
        "broker/writing/waits.py", "if end <= self.reached:", "if end < 0:",
        "tests/broker/writing",
    ),
    Mutant(
        "broker/writing/waits.py", "self.reached = min(self.reached, end)", "self.reached = self.reached",
        "tests/broker/writing",
    ),
    Mutant(f"{_INDEX}/log_keys.py", "tail.count(_KEYS) > 1", "tail.count(_KEYS) > 2", f"tests/{_INDEX}"),
    Mutant(f"{_INDEX}/log_keys.py", 'if any([b" " in', 'if any([b"~" in', f"tests/{_INDEX}"),
    Mutant(f"{_INDEX}/log_keys.py", "hashes < 0x80000000", "hashes <= 0xFFFFFFFF", f"tests/{_INDEX}"),
    Mutant(
        f"{_INDEX}/index_file.py", "previous[order[again + 1]] = numbers[order[again]]", "pass", f"tests/{_INDEX}"
    ),
    Mutant(f"{_INDEX}/index_file.py", "at = previous if previous < at else 0", "at = previous", f"tests/{_INDEX}"),
    Mutant(
        "broker/store/queue/batch_columns.py", "if tagged == len(self) and", "if", "tests/broker/store/queue"
    ),
    # Sends.
    Mutant(
        "broker/writing/admission.py", "self._copies is None and not reasons", "self._copies is None",
        "tests/broker/writing/test_admission.py",
    ),
    Mutant(
        "broker/writing/admission.py", "self._of_role or drained", "self._of_role",
        "tests/broker/writing/test_admission.py",
    ),
    Mutant(
        "broker/writing/stored_properties.py", ', LIGHT_QUEUES.encode())', ")", "tests/broker/writing"
    ),
    Mutant(
        "broker/writing/deferred.py", "(deliver_ms - 1) // precision_ms", "deliver_ms // precision_ms",
        "tests/broker/writing",
    ),
    Mutant(
        "broker/writing/deferred.py", 'or before.find(_DELAY) >= 0', "", "tests/broker/writing/test_writer.py"
    ),
    Mutant(
        "broker/writing/deferred.py", "if not self._soonest <= time <= self._latest:", "if not time:",
        "tests/broker/writing/test_writer.py",
    ),
    Mutant("sdk/retry.py", "ResponseCode.FLOW_CONTROL,", "", "tests/sdk/test_retry.py"),
    Mutant(
        "sdk/producer/pending.py", "if send.alone > most_alone:", "if False:",
        "tests/sdk/producer",
    ),
    Mutant(
        "sdk/producer/lane.py", "sends[0].alone == DEFERRED and not self._takes_deferred(addr):", "False:",
        "tests/sdk/producer/test_lane.py",
    ),
    # Consumers.
    Mutant(
        "sdk/consumer/window.py", "while batches and not batches[0].left:", "while batches:",
        "tests/sdk/consumer/test_window.py",
    ),
    Mutant(
        "sdk/consumer/workers.py", "        if len(self.calls) == 1:\n            return []",
        "        if len(self.calls) == 1:\n            return [self]", "tests/sdk/consumer/test_workers.py",
    ),
    Mutant(
        "sdk/blocking/handlers.py", "elif seen == (leader, leader.served):", "elif seen == ():",
        "tests/sdk/facades/test_threads.py",
    ),
    Mutant(
        "broker/delivery/pop/inflight.py", "& ~checkpoint.acked", "", "tests/broker/delivery/pop/test_inflight.py"
    ),
    # Spark.
    Mutant(
        "spark_connector/store/local.py", "for offset in (wanted.start, wanted.end - 1):",
        "for offset in ():", "tests/spark_connector/store/test_local.py",
    ),
    Mutant(
        "spark_connector/store/local.py", "done = end", "pass", "tests/spark_connector/store/test_local.py"
    ),
    # What a disk lost, and what a member promised.
    Mutant(
        "broker/replication/mark.py", "if boot and each.boot == boot", "", "tests/broker/replication/dledger"
    ),
    Mutant(
        "broker/replication/mark.py", "flushed = max(each[:2] for each in sound)", "flushed = sound[0][:2]",
        "tests/broker/replication",
    ),
    Mutant(
        f"{_SET}/promised_end.py", "if had > log_end:", "if had > log_end + 1_000_000:", f"tests/{_SET}"
    ),
    Mutant(
        f"{_DLEDGER}/log_disk.py", "if self._are_sound(read, has_travelled_whole):", "if True:", f"tests/{_DLEDGER}"
    ),
    Mutant(
        f"{_DLEDGER}/log_disk.py", "if max(now.flushed, now.promised) > last:", "if False:", f"tests/{_DLEDGER}"
    ),
    Mutant(
        f"{_DLEDGER}/mending.py", "if index not in self._stepped_aside:", "if False:", f"tests/{_DLEDGER}"
    ),
    Mutant(
        f"{_RAFT}/plausible.py", "if known > message.term:", "if known > message.term + 1:", "tests/mqcommon/raft"
    ),
    Mutant("mqcommon/disk/atomic.py", "return data if data and", "return data if", "tests/mqcommon/disk"),
    Mutant(
        "mqcommon/disk/atomic.py", "            file.sync()\n", "", "tests/mqcommon/disk/test_atomic.py"
    ),
    # A clock that is set.
    Mutant(
        "broker/store/clock_steps.py", "at_ms > self.seen_ms or", "", "tests/broker/store/test_clock_steps.py"
    ),
    Mutant(
        "broker/store/clock_steps.py", "min(log_end_before, log_end), log_end)", "log_end_before, log_end)",
        "tests/broker/store/test_clock_steps.py",
    ),
    Mutant(
        "broker/delivery/message_ages.py", "stored_ms = min(stored_ms, self._begun_ms)", "pass",
        "tests/broker/delivery",
    ),
    # Topics that are made again, offsets that are kept.
    Mutant(
        "sdk/consumer/trail.py", "and self.has_been_there and not answer.min_offset", "and not answer.min_offset",
        "tests/sdk/consumer/test_trail.py",
    ),
    Mutant(
        "sdk/consumer/trail.py", "or place >= last[1] or", "or", "tests/sdk/consumer/test_trail.py"
    ),
    Mutant(
        "sdk/consumer/trail.py", "answer.broker_id != MASTER_ID and stamp", "stamp",
        "tests/sdk/consumer/test_trail.py",
    ),
    Mutant(
        "sdk/consumer/offsets.py", "if self._forgotten.get(mq, 0) == forgotten:", "if True:",
        "tests/sdk/consumer/test_commits.py",
    ),
    Mutant(
        "sdk/consumer/offsets.py", "route.stamps.get(mq.broker_name, 0) > created_ms:",
        "route.stamps.get(mq.broker_name, 0) != created_ms:", "tests/sdk/consumer/test_commits.py",
    ),
    # Messages of a pop that are read together.
    Mutant("mqproxy/columns.py", 'b"\\x02" in b"".join(keys) or not', "not", "tests/mqproxy/test_deliveries.py"),
    Mutant(
        "mqproxy/columns.py", "born_hosts, rests, befores, afters)", "born_hosts, rests, befores)",
        "tests/mqproxy/test_deliveries.py",
    ),
    Mutant("mqproxy/columns.py", "COMPRESSED | HOSTS_V6 | WRAPPED", "WRAPPED", "tests/mqproxy/test_deliveries.py"),
    Mutant(
        "mqproxy/stored.py", "and len(properties) == self._size", "and len(properties) > 0",
        "tests/mqproxy/test_deliveries.py",
    ),
    Mutant(
        "mqproxy/deliveries.py", "digits += offset + place", "digits = offset + place",
        "tests/mqproxy/test_deliveries.py",
    ),
    # Brokers that are away.
    Mutant(
        "namesrv/known_brokers.py", "(before.topics or {}) | had", "had", "tests/namesrv/test_known_brokers.py"
    ),
    Mutant(
        "namesrv/known_brokers.py", "and name not in self._gone]", "]", "tests/namesrv/test_known_brokers.py"
    ),
    Mutant(
        "spark_connector/reading/whole.py", "if not missing or tries == num_retries:", "if True:",
        "tests/spark_connector/reading/test_whole.py",
    ),
    Mutant(
        "spark_connector/reading/whole.py", "set(required) - there", "set()",
        "tests/spark_connector/reading/test_whole.py",
    ),
    Mutant(
        "spark_connector/tasks.py", "if max_rows and rows and", "if False and", "tests/spark_connector/test_tasks.py"
    ),
    Mutant(
        "spark_connector/tasks.py", "at.sort(reverse=True)", "at.sort()", "tests/spark_connector/test_tasks.py"
    ),
    # Sends that are stored with less safety, and batches by their real bytes.
    Mutant(
        "sdk/producer/batches.py", "bisect_right(ends, begin + most_bytes, start)",
        "bisect_right(ends, begin + 2 * most_bytes, start)", "tests/sdk/producer/test_batches.py",
    ),
    Mutant(
        "sdk/producer/weak.py", "if addr not in self._trying and", "if False and", "tests/sdk/producer/test_weak.py"
    ),
    Mutant(
        "sdk/producer/lane.py", "and at not in avoid and usable(at, now * 1000, weak_too=weak_too)",
        "and usable(at, now * 1000, weak_too=weak_too)", "tests/sdk/producer",
    ),
    Mutant("sdk/retry.py", "is_passing=True", "", "tests/sdk/test_retry.py"),
    # Who may do what.
    Mutant(
        "remoting/protocol/plain_codes.py", "code in codes and who.is_it(name, host)", "who.is_it(name, host)",
        "tests/remoting/protocol/test_plain_codes.py",
    ),
    Mutant(
        "remoting/protocol/sealing.py", "_hash(key, nonce + hidden) + hidden", "_hash(key, hidden) + hidden",
        "tests/remoting/protocol/test_sealing.py",
    ),
    Mutant("mqcommon/exposure.py", "if not _is_loopback(host):", "if False:", "tests/mqcommon/test_exposure.py"),
    # The console.
    Mutant("mqconsole/watching/pace.py", "if before >= 0:", "if True:", "tests/mqconsole/test_pace.py"),
    # Descriptions.
    Mutant(
        "mqcommon/lazy_dataclass.py", "values.keys().isdisjoint(kwargs)", "True",
        "tests/mqcommon/test_lazy_dataclass.py",
    ),
)  # fmt: skip


def is_noticed(tree: Path, mutant: Mutant) -> bool:
    """Whether a test fails in ``tree`` with the mutant, which is removed afterwards."""
    path = tree / mutant.file
    text = path.read_text()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.tests]
        # A compiled file is known by size and time, and a mutant may differ in neither.
        env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(command, cwd=tree, env=env, capture_output=True)
    finally:
        path.write_text(text)
    # 1: a test failed; 2: a file of tests cannot be imported.
    return run.returncode in (1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="mutants whose file or text has this in it")
    only = parser.parse_args().only
    chosen = [mutant for mutant in MUTANTS if only in mutant.file or only in mutant.old]
    survived = 0
    with tempfile.TemporaryDirectory() as home:
        tree = Path(home)
        copy_tree(tree)
        for mutant in chosen:
            noticed = is_noticed(tree, mutant)
            survived += not noticed
            what = "noticed " if noticed else "SURVIVED"
            print(f"{what} {mutant.file}: {mutant.old!r} -> {mutant.new!r}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} noticed")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
