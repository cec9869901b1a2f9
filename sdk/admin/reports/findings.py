"""The report of the doctor (`mqadmin doctor`). Pure."""

from collections.abc import Mapping

from skylark.mqcommon.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One finding of a check. ``state`` is OK, INFO, WARN or FAIL; ``remedy`` says what to do, or is empty."""

    state: str
    check: str
    where: str
    text: str
    remedy: str


@lazy_dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings that were asked for, and the number of findings with each state."""

    findings: tuple[DoctorFinding, ...]
    counts: Mapping[str, int]
