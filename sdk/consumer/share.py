"""How many messages of each queue one poll returns. Pure."""

from collections.abc import Sequence


def share_out(waiting: Sequence[int], most: int) -> list[int]:
    """How many to take of each queue, given how many wait there: ``most`` in all, as equally as the queues allow.

    What does not divide evenly goes to the first queues.
    """
    shares = [0] * len(waiting)
    short = [number for number, count in enumerate(waiting) if count]
    while short and most:
        each = max(most // len(short), 1)
        for number in short[:most]:
            taken = min(each, waiting[number] - shares[number])
            shares[number] += taken
            most -= taken
        short = [number for number in short if shares[number] < waiting[number]]
    return shares
