"""Sends and pulls through real processes: one broker, one NameServer, this client. Skylark and the limit in turn.

The limit is bench/echo.py, which returns the same bytes without headers, messages or a store.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

import trio

from bench.harness import Cluster, Row, cluster, echo_server, in_turn, row, show, turns
from bench.traffic import (
    FRAME,
    QUEUES,
    TOPIC,
    awaited,
    echo_one_by_one,
    make_topic,
    nowait,
    one_by_one,
    pipeline,
    pull,
    pull_arrow,
    requests,
    run,
    send_arrow,
    send_frames,
    send_many,
)
from skylark.remoting.protocol.command import FLAG_RESPONSE

# About the size of a message of 128 bytes in the log.
RECORD_BYTES = 330
# The name of the topic whose queues hold whole batches.
BATCH_TOPIC = "batches"


def echoed(echo: str, frames: list[bytes], per_frame: int) -> float:
    """Messages a second that come back in such frames."""
    return run(pipeline, echo, frames, 4, b"") * per_frame


def send_rows(n: int, rounds: int) -> Iterator[Row]:
    body = b"x" * 128
    frames = send_frames(n, body)
    with echo_server() as echo, cluster() as at:
        trio.run(make_topic, at)
        for window in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, requests, at.broker, body, n, window, 0),
                partial(run, requests, echo, body, n, window, FLAG_RESPONSE),
            )
            yield row(f"send 128 B, one request each, {window} in flight", "msg/s", *figures, n)
        for window in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, pipeline, at.broker, frames, window, b'"code":0,'),
                partial(run, pipeline, echo, frames, window, b'"code":310'),
            )
            yield row(f"send 128 B, one request each, {window} in flight, frames made before", "msg/s", *figures, n)
        figures = in_turn(
            rounds,
            lambda: run(awaited, at, body, n, 1000, batching=False),
            lambda: run(pipeline, echo, frames, 1000, b'"code":310'),
        )
        yield row("send 128 B, one request each, 1,000 in flight, our Producer", "msg/s", *figures, n)
        for tasks in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, awaited, at, body, 2 * n, tasks, batching=True),
                partial(run, pipeline, echo, frames, tasks, b'"code":310'),
            )
            yield row(f"send 128 B, adaptive batches, {tasks} awaiting", "msg/s", *figures, 2 * n)
        figures = in_turn(
            rounds,
            partial(run, nowait, at, body, 4 * n),
            partial(run, pipeline, echo, frames, 1000, b'"code":310'),
        )
        yield row("send_nowait, 128 B", "msg/s", *figures, 4 * n)
        figures = in_turn(
            rounds,
            lambda: run(one_by_one, at, body, 2_000),
            lambda: run(echo_one_by_one, echo, frames[0], 2_000),
        )
        yield row("send 128 B, one in flight, median", "ms", *figures, 2_000, smaller_is_better=True)


def flush_rows(n: int, rounds: int) -> Iterator[Row]:
    with (
        cluster(options=("--flush-disk-type", "SYNC_FLUSH")) as sync,
        cluster(options=("--flush-disk-type", "ASYNC_FLUSH")) as async_,
    ):
        for at in (sync, async_):
            trio.run(make_topic, at)

        def sends(at: Cluster, tasks: int) -> float:
            return run(awaited, at, b"x" * 128, n, tasks, batching=True)

        for tasks in (1_000, 64):
            found, limit, floor = turns(
                rounds, partial(sends, sync, tasks), partial(sends, async_, tasks), partial(flushed, tasks)
            )
            name = f"SYNC_FLUSH, 128 B, adaptive, {tasks:,} awaiting"
            yield row(f"{name}; limit: ASYNC_FLUSH", "msg/s", found, limit, n)
            yield row(f"{name}; limit: a bare flush for each", "msg/s", found, floor, n)


def flushed(together: int) -> float:
    """Messages a second of a program that again and again appends ``together`` messages to a file and flushes it."""
    data, rounds = bytes(together * RECORD_BYTES), 200
    with tempfile.TemporaryFile() as file:
        file.truncate(len(data) * rounds)
        os.posix_fallocate(file.fileno(), 0, len(data) * rounds)
        began = time.perf_counter()
        for number in range(rounds):
            os.pwrite(file.fileno(), data, number * len(data))
            os.fdatasync(file.fileno())
        return together * rounds / (time.perf_counter() - began)


def bulk_rows(n: int, rounds: int) -> Iterator[Row]:
    for size, count in ((128, 6 * n), (1024, 2 * n)):
        # The limit carries the same batches as opaque frames; its figure counts the messages in them.
        per_frame = min(1000, 262_144 // size)
        frame = FRAME.pack(4 + per_frame * (size + 70), 0) + bytes(per_frame * (size + 70))
        frames = [frame] * (count // per_frame)
        with echo_server() as echo, cluster() as at:
            trio.run(make_topic, at)
            trio.run(partial(make_topic, at, BATCH_TOPIC, QUEUES, **{"queue.type": "BatchCQ"}))
            limit = partial(echoed, echo, frames, per_frame)
            yield from topic_rows(at, TOPIC, "", size, count, rounds, limit)
            yield from topic_rows(at, BATCH_TOPIC, ", batch queues", size, count, rounds, limit)


def topic_rows(
    at: Cluster, topic: str, kind: str, size: int, count: int, rounds: int, limit: Callable[[], float]
) -> Iterator[Row]:
    """Figures of one topic: bulk sends, and pulls."""
    body = b"x" * size
    figures = in_turn(rounds, partial(run, send_many, at, topic, body, count), limit)
    yield row(f"send_many {size} B{kind}", "msg/s", *figures, count)
    pulled = in_turn(rounds, partial(run, pull, at, topic, count), limit)
    yield row(f"pull from the start, {size} B{kind}", "msg/s", *pulled, count * (rounds + 1))
    figures = in_turn(rounds, partial(run, send_arrow, at, topic, body, count), limit)
    yield row(f"send_arrow, {size} B{kind}", "msg/s", *figures, count)
    stored = 2 * count * (rounds + 1)
    for what, columns in (("15 columns", None), ("bodies only", ["body"])):
        pulled = in_turn(rounds, partial(run, pull_arrow, at, topic, count, columns), limit)
        yield row(f"arrow pulls, {size} B, {what}{kind}", "msg/s", *pulled, stored)


def rows(n: int, rounds: int, only: str | None) -> Iterator[Row]:
    if only != "bulk":
        yield from send_rows(n, rounds)
        yield from flush_rows(2 * n, rounds)
    if only != "sends":
        yield from bulk_rows(n, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=100_000, help="messages of the plain sends; others take multiples")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--only", choices=("sends", "bulk"), help="one half of it")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.n, arguments.rounds, arguments.only), arguments.json)


if __name__ == "__main__":
    main()
