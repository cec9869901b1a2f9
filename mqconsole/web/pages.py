"""The templates of the pages, compiled at their first use; one environment serves all consoles of a process."""

from functools import cache, partial
from importlib import resources
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader

from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.previews import printable


@cache
def environment() -> Environment:
    """Escapes everything in pages, and has the filters of the templates."""
    found = Environment(loader=FunctionLoader(_source), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters |= {
        "count": texts.count,
        "size": texts.size,
        "percent": texts.percent,
        "duration": texts.duration,
        "moment": texts.moment,
        "setting": texts.setting,
        "part": partial(quote, safe=""),
        "printable": printable,
    }
    return found


def _source(name: str) -> str:
    return resources.files("skylark.mqconsole").joinpath("templates", name).read_text(encoding="utf-8")
