"""The report of the demo is well-formed, holds what was found, and loads nothing."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from scripts.demo.flights import Carrier
from scripts.demo.picture import WIDTH, bars, line, report_html

FOUND = {"rows": 5, "queues": [["broker-a", 0, 3], ["broker-b", 0, 2]], "stored": [[100, 3], [102, 2]]}


def test_the_page_has_both_pictures_and_loads_nothing() -> None:
    page = report_html(FOUND, {"UA": Carrier(3, 2, 10), "XX": Carrier(2, 0, 0)}, {"UA": "United <Air> & Lines"})
    assert "5 rows from 2 queues of 2 brokers" in page
    assert page.count("<svg") == 2 and "UA United &lt;Air&gt; &amp; Lines" in page
    assert "XX" not in page  # no departure, no mean
    assert "src=" not in page and "href=" not in page and "<script" not in page


@given(st.lists(st.tuples(st.text("ab<&", max_size=4), st.floats(-500, 500)), max_size=20))
def test_bars_fit_the_picture(values: list[tuple[str, float]]) -> None:
    tree = ElementTree.fromstring(bars(values))
    rects = [each for each in tree if each.tag.endswith("rect")]
    assert len(rects) == len(values)
    assert all(float(each.attrib["x"]) + float(each.attrib["width"]) <= WIDTH for each in rects)


@given(st.dictionaries(st.integers(0, 300), st.integers(0, 10**6), min_size=1, max_size=20))
def test_the_line_has_a_point_for_every_second(counts: dict[int, int]) -> None:
    tree = ElementTree.fromstring(line(list(counts.items())))
    (polyline,) = [each for each in tree if each.tag.endswith("polyline")]
    places = [tuple(map(float, place.split(","))) for place in polyline.attrib["points"].split()]
    assert len(places) == max(counts) - min(counts) + 1
    assert all(0 <= x <= WIDTH and 0 <= y <= 180 for x, y in places)


def test_nothing_is_said_in_words() -> None:
    assert "nothing was stored" in line([])
