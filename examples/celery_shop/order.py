"""Orders some tea, and waits for the receipts and for a reminder: `python order.py [ORDERS]`."""

import argparse

from celery import chain, group
from shop import charge, receipt, remind

RESULT_S = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("orders", type=int, nargs="?", default=5, help="how many")
    count = parser.parse_args().orders
    reminder = remind.apply_async((1,), countdown=2)
    receipts = group(chain(charge.s(order, 100 * order + 20), receipt.s(order)) for order in range(1, count + 1))
    for line in receipts.apply_async().get(timeout=RESULT_S):
        print(line, flush=True)
    print(reminder.get(timeout=RESULT_S), flush=True)


if __name__ == "__main__":
    main()
