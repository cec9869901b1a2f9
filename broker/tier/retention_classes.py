"""The retention classes of topics. Pure.

A class is a number of hours: an object of a segment has the records of all topics of one class, and is removed when the
newest record of the segment is that old. There are few classes, since each class adds an object to a segment.
"""

from itertools import chain

# In hours. A time is rounded up to the next class; a time of more than a year to whole years.
_CLASSES = (1, 2, 3, 6, 12, *(24 * days for days in (1, 2, 3, 5, 7, 14, 30, 60, 90, 180, 365)))
_YEAR = _CLASSES[-1]


def retention_class(reserve_time: str) -> int:
    """The class of a topic whose attribute ``reserve.time`` has this value; 0: as tierReservedTimeHours says."""
    hours = int(reserve_time) if reserve_time.isdecimal() else 0
    if hours <= 0:
        return 0
    years = -(-hours // _YEAR)
    return next(each for each in chain(_CLASSES, [years * _YEAR]) if each >= hours)
