"""The arguments of pages and changes, checked; and the answers of pages."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from skylark.mqcommon.errors import InvalidArgument, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.people.person import ChangeFailed, Person
from skylark.mqconsole.showing.tables import Table
from skylark.mqconsole.showing.texts import parse_moment
from skylark.mqconsole.watching.collector import Collector
from skylark.mqconsole.watching.snapshot import Snapshot
from skylark.sdk.admin.reports.changes import Change
from skylark.sdk.admin.reports.report import plain


class NoSuchThing(UserError):
    """The address names something that does not exist: the answer is 404."""


def check_done(doing: str, results: Iterable[Change]) -> None:
    """ChangeFailed unless the change was made at all servers."""
    if errors := [f"{doing}: {result.error}" for result in results if not result.ok]:
        raise ChangeFailed("; ".join(errors))


class Fields:
    """Fields of a form or parts of an address. Texts are stripped; an invalid value is an error."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, default).strip()

    def needed(self, name: str, title: str) -> str:
        """The text of a field. InvalidArgument when the text is empty."""
        if not (text := self.text(name)):
            raise InvalidArgument(f"give {title}")
        return text

    def flag(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.values.get(name, "") in ("1", "on", "true")

    def ticked(self, prefix: str) -> list[str]:
        """The names of ticked boxes that begin with ``prefix``, without the prefix."""
        return [name.removeprefix(prefix) for name in self.values if name.startswith(prefix) and self.flag(name)]

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if not text:
            return default
        value = int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else None
        if value is None or not low <= value <= high:
            raise InvalidArgument(f"{name} must be a number from {low} to {high}, not {text!r}")
        return value

    def moment(self, name: str) -> int | None:
        """A time in milliseconds; None when the field is empty."""
        if not (text := self.text(name)):
            return None
        try:
            return parse_moment(text)
        except ValueError:
            raise InvalidArgument(f"{name} must be a time as 2026-11-27T08:00 (UTC), not {text!r}") from None

    def confirmed(self, name: str) -> None:
        """InvalidArgument unless the person has typed ``name`` to confirm."""
        if self.values.get("confirm", "") != name:
            raise InvalidArgument(f"nothing was changed: type {name} to confirm")


@lazy_dataclass(frozen=True, slots=True)
class Asked:
    """One request of a person who has the role for it."""

    person: Person
    fields: Fields
    collector: Collector

    @property
    def snapshot(self) -> Snapshot:
        return self.collector.snapshot

    def cluster(self) -> str:
        """The cluster that the fields name, or the only one; InvalidArgument when there are several."""
        known = self.snapshot.clusters()
        if chosen := self.fields.text("cluster"):
            if chosen not in known:
                raise InvalidArgument(f"there is no cluster {chosen!r}")
            return chosen
        if len(known) != 1:
            raise InvalidArgument("choose a cluster")
        return known[0]


@lazy_dataclass(slots=True)
class View:
    """The answer of a page. All members except pictures are also in the JSON."""

    title: str
    #: The variables of the template, which finds them by their names. Reports are objects in the JSON.
    data: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    #: SVG, made by showing/charts.py or sdk/admin/topology_picture.py, which escape all names.
    pictures: dict[str, str] = field(default_factory=dict)
    #: Questions without an answer, as texts.
    problems: list[str] = field(default_factory=list)

    # The result is a JSON document, whose members have any type.
    def plain(self) -> dict[str, Any]:
        """The figures for JSON."""
        tables = {name: table.report() for name, table in self.tables.items()}
        return {"title": self.title, **plain(self.data), **plain(tables), "problems": self.problems}


@lazy_dataclass(frozen=True, slots=True)
class Done:
    """The answer of a change: the next page, and the text that says what was done."""

    location: str
    text: str


@lazy_dataclass(frozen=True, slots=True)
class Download:
    """A file, or a picture."""

    body: bytes | str
    content_type: str
    #: Empty: shown by the browser, not saved.
    file_name: str = ""
