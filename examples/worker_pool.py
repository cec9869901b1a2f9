"""A pool of processes that consume as one group: for handlers that compute, and that block.

    python worker_pool.py 127.0.0.1:9876 orders 4

Each process opens a consumer of its own, and the group divides the queues among them, so a topic needs at least as many
queues as there are processes. When one dies, the others get its queues, and the pool starts another. Ctrl-C or SIGTERM
lets the handlers that run finish.
"""

import logging
import multiprocessing
import signal
import sys
import threading
from multiprocessing.context import SpawnProcess

from sdk import MessageExt
from sdk.blocking import PushConsumer

# A new process inherits nothing: neither threads that are gone nor locks that they held.
CONTEXT = multiprocessing.get_context("spawn")
CHECK_S = 0.2


def handle(message: MessageExt) -> None:
    """The work for one message; it may block, and other messages are handled meanwhile by other threads."""
    logging.info("%s", message.body.decode())


def work(nameserver: str, topic: str) -> None:
    """One process of the pool."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(process)d %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the pool ends them
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with PushConsumer(nameserver, group="pool", subscriptions={topic: "*"}, handler=handle, concurrency=4):
        stopping.wait()


def main(nameserver: str, topic: str, count: int) -> None:
    """Keep ``count`` processes running until SIGINT or SIGTERM."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    processes: list[SpawnProcess] = []
    try:
        while not stopping.is_set():
            processes = [process for process in processes if process.is_alive()]
            while len(processes) < count:
                processes.append(CONTEXT.Process(target=work, args=(nameserver, topic)))
                processes[-1].start()
            stopping.wait(CHECK_S)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
