"""Draws a cluster as SVG text: its sets as boxes, the topics and groups with the largest lag as bars. Pure.

A large cluster stays readable: MOST_SETS boxes, chosen by trouble and lag, and ``top`` topics and groups; the rest is a
sum. Names are cut to the width that they have; the tooltip has the whole name.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.topology import BrokerSet, GroupLag, TopicLag, Topology, role_text

MOST_SETS, MOST_BROKERS, MOST_NAMES = 40, 4, 3
WIDTH = 1_200
_MARGIN, _LINE, _CHAR = 16, 16, 6.3
_ACROSS, _GAP = 4, 10
_BOX = (WIDTH - 2 * _MARGIN - (_ACROSS - 1) * _GAP) / _ACROSS
# Where the columns of the bars begin, and how long the longest bar is.
_QUEUES_AT, _BAR_AT, _BAR, _NAMES_AT = 330, 510, 240, 830
_GOOD, _BAD, _LAG = "#2e7d32", "#c62828", "#c8553d"
# XML has no form for these, escaped or not. Compiled at its first use, which takes milliseconds.
_NOT_XML = "[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def picture(topology: Topology, top: int) -> str:
    """The result of `topology` as an SVG document."""
    page = _Page()
    sets = [one for cluster in topology.clusters for one in cluster.sets]
    brokers = sum(len(one.brokers) for one in sets)
    lag = sum(one.lag for one in sets)
    page.text(
        f"{_n(len(sets), 'set')}, {_n(brokers, 'broker')}, {_n(len(topology.topics), 'topic')},"
        f" {_n(len(topology.groups), 'group')}, lag {lag:,}",
        bold=True,
    )
    shown = {id(one) for one in sorted(sets, key=_importance)[:MOST_SETS]}
    for cluster in topology.clusters:
        _boxes(page, cluster.cluster_name, cluster.sets, shown)
    _bars(page, "topic", [_topic_bar(row) for row in topology.topics], top)
    _bars(page, "group", [_group_bar(row) for row in topology.groups], top)
    return page.svg()


class _Page:
    """Parts of the picture, from the top down."""

    def __init__(self) -> None:
        self.y = float(_MARGIN)
        self._parts: list[str] = []

    def draw(self, part: str) -> None:
        self._parts.append(part)

    def text(self, text: str, x: float = _MARGIN, *, bold: bool = False) -> None:
        """Draw a line of text."""
        self.y += _LINE + (6 if bold else 0)
        self.draw(_text(x, self.y, text, WIDTH - x - _MARGIN, bold=bold))

    def svg(self) -> str:
        height = self.y + 2 * _MARGIN
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}"'
            f' height="{height:.0f}" font-family="sans-serif" font-size="11" fill="#333">'
        )
        return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *self._parts, "</svg>\n"])


def _boxes(page: _Page, cluster: str, sets: Sequence[BrokerSet], shown: set[int]) -> None:
    page.text(f"Cluster {cluster}", bold=True)
    page.y += 6
    own = [one for one in sets if id(one) in shown]
    for at in range(0, len(own), _ACROSS):
        row = own[at : at + _ACROSS]
        high = _LINE * (3 + max(min(len(one.brokers), MOST_BROKERS + 1) for one in row)) + 8
        for column, one in enumerate(row):
            _box(page, _MARGIN + column * (_BOX + _GAP), page.y, high, one)
        page.y += high + _GAP
    rest = [one for one in sets if id(one) not in shown]
    if rest:
        brokers = sum(len(one.brokers) for one in rest)
        queues = sum(one.write_queues for one in rest)
        page.text(
            f"and {_n(len(rest), 'more set')}: {_n(brokers, 'broker')}, {_n(queues, 'write queue')},"
            f" lag {sum(one.lag for one in rest):,}"
        )


def _box(page: _Page, x: float, y: float, high: float, one: BrokerSet) -> None:
    colour = _GOOD if _is_well(one) else _BAD
    page.draw(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BOX:.1f}" height="{high:.1f}" rx="4" fill="#fafafa"'
        f' stroke="{colour}" stroke-width="1.5"/>'
    )
    room = _BOX - 16
    lines = [(one.broker_name + ("" if one.has_master else " (no master)"), colour)]
    for broker in one.brokers[:MOST_BROKERS]:
        text, broker_colour = f"{role_text(broker.broker_id)} {broker.broker_addr}", "#333"
        if broker.error is not None:
            text, broker_colour = f"{text}: {broker.error}", _BAD
        elif broker.broker_id == 0:
            text = f"{text} in {broker.in_tps:,.0f}/s out {broker.out_tps:,.0f}/s"
        elif broker.lag.lag_bytes:
            text = f"{text} {broker.lag.lag_bytes:,} B behind"
        lines.append((text, broker_colour))
    if len(one.brokers) > MOST_BROKERS:
        lines.append((f"and {len(one.brokers) - MOST_BROKERS} more", "#333"))
    lines.append((f"{_n(one.topic_count, 'topic')}, {_queues(one)}", "#333"))
    lines.append((f"lag {one.lag:,}", _LAG if one.lag else "#333"))
    for number, (text, fill) in enumerate(lines):
        page.draw(_text(x + 8, y + _LINE * (number + 1), text, room, bold=number == 0, fill=fill))


@lazy_dataclass(frozen=True, slots=True)
class _Bar:
    """The lag of a topic, with its groups as ``parts``, or the lag of a group, with its topics as ``parts``."""

    name: str
    lag: int
    parts: Mapping[str, int]
    where: str = ""


def _topic_bar(row: TopicLag) -> _Bar:
    return _Bar(row.topic, row.lag, row.groups, f"{_queues(row)}, {_n(len(row.sets), 'set')}")


def _group_bar(row: GroupLag) -> _Bar:
    return _Bar(row.consumer_group, row.lag, row.topics)


def _bars(page: _Page, kind: str, rows: Sequence[_Bar], top: int) -> None:
    if not rows:
        return
    shown, rest = rows[:top], rows[top:]
    of = f" ({len(shown)} of {len(rows):,})" if rest else ""
    page.text(f"{kind.capitalize()}s by lag{of}", bold=True)
    longest = max(row.lag for row in rows) or 1
    for row in shown:
        page.y += _LINE
        page.draw(_text(_MARGIN, page.y, row.name, _QUEUES_AT - _MARGIN - 8))
        if row.where:
            page.draw(_text(_QUEUES_AT, page.y, row.where, _BAR_AT - _QUEUES_AT - 8))
        wide = max(_BAR * row.lag / longest, 1.0 if row.lag else 0.0)
        page.draw(
            f'<rect x="{_BAR_AT}" y="{page.y - 9:.1f}" width="{wide:.1f}" height="10" fill="{_LAG}"/>'
            + _text(_BAR_AT + wide + 6, page.y, f"{row.lag:,}", _NAMES_AT - _BAR_AT - wide)
        )
        late = sorted(row.parts.items(), key=lambda item: (-item[1], item[0]))
        text = ", ".join(f"{each} {lag:,}" for each, lag in late[:MOST_NAMES])
        more = f", and {len(late) - MOST_NAMES} more" if len(late) > MOST_NAMES else ""
        page.draw(_text(_NAMES_AT, page.y, text + more, WIDTH - _NAMES_AT - _MARGIN))
    if rest:
        page.text(f"and {_n(len(rest), f'more {kind}')}: lag {sum(row.lag for row in rest):,}")


def _is_well(one: BrokerSet) -> bool:
    return one.has_master and all(broker.error is None for broker in one.brokers)


def _importance(one: BrokerSet) -> tuple[bool, int, str]:
    """The sort key of sets: sets in trouble first, then the largest lag."""
    return _is_well(one), -one.lag, one.broker_name


def _queues(row: BrokerSet | TopicLag) -> str:
    write, read = row.write_queues, row.read_queues
    return _n(write, "queue") if write == read else f"{write:,} w {read:,} r"


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _text(x: float, y: float, text: str, room: float, *, bold: bool = False, fill: str = "") -> str:
    """A text that is cut to ``room`` pixels; its tooltip has all of it."""
    text = re.sub(_NOT_XML, lambda found: f"\\u{ord(found[0]):04x}", text)
    fits = max(int(room / _CHAR), 1)
    shown = text if len(text) <= fits else f"{text[: fits - 1]}\N{HORIZONTAL ELLIPSIS}"
    style = (' font-weight="bold"' if bold else "") + (f' fill="{fill}"' if fill else "")
    title = f"<title>{escape(text)}</title>" if shown != text else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{title}{escape(shown)}</text>'
