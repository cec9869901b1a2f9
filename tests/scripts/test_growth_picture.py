"""The picture of the bench growth: well-formed, and every point within its panel."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from bench.growth_picture import PANEL_HEIGHT, PANEL_WIDTH, Panel, picture

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=6, unique=True).map(sorted)


@st.composite
def panels(draw: st.DrawFn) -> Panel:
    sizes = draw(SIZES)
    costs = st.lists(st.floats(0, 1e7), min_size=len(sizes), max_size=len(sizes))
    return Panel(
        draw(st.text("ab<&", max_size=9)), "us", sizes, draw(st.dictionaries(st.text("ab<&"), costs, max_size=5))
    )


@given(st.lists(panels(), max_size=5))
def test_points_are_within_their_panels(drawn: list[Panel]) -> None:
    root = ElementTree.fromstring(picture(drawn))
    groups = [each for each in root if each.tag.endswith("}g")]
    assert len(groups) == len(drawn)
    for group, panel in zip(groups, drawn, strict=True):
        lines = [each for each in group if each.tag.endswith("polyline")]
        assert len(lines) == len(panel.costs)
        for line in lines:
            places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
            assert len(places) == len(panel.sizes)
            assert places == sorted(places, key=lambda place: place[0])
            assert all(0 <= x <= PANEL_WIDTH and 0 <= y <= PANEL_HEIGHT for x, y in places)


def test_flat_costs_are_a_flat_line() -> None:
    root = ElementTree.fromstring(picture([Panel("queues", "us", [1, 10, 100], {"send": [80, 80, 80]})]))
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    assert len({place.split(",")[1] for place in line.attrib["points"].split()}) == 1
