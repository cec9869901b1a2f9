"""The stores of Java brokers in tests/golden/store, and what their producers were told."""

import json
import tarfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "store"
VERSIONS = ("4.9.8", "5.3.3")


def unpack(version: str, home: Path) -> Path:
    """The store directory of a broker of ``version``, as it was when that was stopped."""
    with tarfile.open(GOLDEN / f"rocketmq-{version}.tar.gz") as tar:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.2 of Debian 12 has no such filter
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(home)
    return home / "store"


def rows(version: str, kind: str) -> list[dict[str, Any]]:
    """What is said of a ROW, BATCH, BIG or OFFSET."""
    lines = (GOLDEN / f"rocketmq-{version}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def stored_offsets(version: str) -> dict[int, int]:
    """What golden_group has committed of GoldenA, by queue.

    The broker of 5.3.3 was told an offset of queue 1, too, and did not write it before it stopped.
    """
    offsets = {row["queueId"]: row["offset"] for row in rows(version, "OFFSET")}
    return {queue_id: offset for queue_id, offset in offsets.items() if (version, queue_id) != ("5.3.3", 1)}
