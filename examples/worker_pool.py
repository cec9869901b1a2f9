"""A pool of processes that consume as one group: for handlers that compute, and that block.

    python worker_pool.py 127.0.0.1:9876 orders 4

Each process opens a consumer of its own, and the group divides the queues among them, so a topic needs at least as many
queues as there are processes. When one dies, the others get its queues, and the pool starts another. Ctrl-C or SIGTERM
lets the handlers that run finish. A consumer that brokers do not let in ends the pool: a new process would not help.
"""

import argparse
import logging
import multiprocessing
import os
import signal
import sys
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess

from skylark import BrokerError, MessageExt
from skylark.blocking import PushConsumer

# A new process inherits nothing: neither threads that are gone nor locks that they held.
CONTEXT = multiprocessing.get_context("spawn")
# Signals that all processes block, and wait for: so no signal comes at a wrong moment, as when a process is starting.
STOPPING = (signal.SIGINT, signal.SIGTERM)
CHECK_S = 0.2


def handle(message: MessageExt) -> None:
    """The work for one message; it may block, and other messages are handled meanwhile by other threads."""
    logging.info("%s", message.body.decode())


def work(nameserver: str, topic: str) -> None:
    """One process of the pool, until SIGTERM. Ctrl-C goes to all processes, but the pool ends them."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(process)d %(message)s")
    try:
        with PushConsumer(nameserver, group="pool", subscriptions={topic: "*"}, handler=handle, concurrency=4):
            signal.sigwait([signal.SIGTERM])
    except BrokerError as error:
        logging.error("%s", error)
        sys.exit(os.EX_CONFIG)


def main(nameserver: str, topic: str, count: int) -> None:
    """Keep ``count`` processes running until SIGINT or SIGTERM."""
    resource_tracker.ensure_running()  # when it starts, it unblocks signals
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    processes: list[SpawnProcess] = []
    try:
        while all(process.exitcode != os.EX_CONFIG for process in processes):
            processes = [process for process in processes if process.is_alive()]
            while len(processes) < count:
                processes.append(CONTEXT.Process(target=work, args=(nameserver, topic)))
                processes[-1].start()
            if signal.sigtimedwait(STOPPING, CHECK_S) is not None:
                return
        sys.exit(os.EX_CONFIG)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("nameserver")
    arguments.add_argument("topic")
    arguments.add_argument("count", type=int)
    main(**vars(arguments.parse_args()))
