"""Majorities."""

from collections.abc import Callable, Collection


def majority(count: int) -> int:
    return count // 2 + 1


def reached(voters: Collection[str], value: Callable[[str], int]) -> int:
    """The highest number that a majority of ``voters`` has reached."""
    values = sorted(map(value, voters), reverse=True)
    return values[majority(len(values)) - 1] if values else 0


def won(voters: Collection[str], votes: dict[str, bool]) -> bool:
    return sum(votes.get(voter, False) for voter in voters) >= majority(len(voters))


def lost(voters: Collection[str], votes: dict[str, bool]) -> bool:
    """Whether the missing votes cannot make a majority any more."""
    return sum(votes.get(voter, True) for voter in voters) < majority(len(voters))
