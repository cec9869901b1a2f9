"""The page that searches the names of clusters, brokers, topics and groups."""

from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing.search import search
from skylark.mqconsole.web.asking import Asked, View
from skylark.mqconsole.web.site import Site


def add_searching(site: Site) -> None:
    """Register the page."""

    site.page("/search", Role.READER, "search.html", find)


async def find(ask: Asked) -> View:
    text = ask.fields.text("q")
    return View("Search", {"q": text, "kinds": search(ask.snapshot, text)})
