"""Login and logout. A login makes a new session: an id that somebody knew before the login is worth nothing."""

from typing import Final

from quart import Response, g, redirect, request

from skylark.mqconsole.people.people import LoginFailed
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing.previews import printable
from skylark.mqconsole.web.asking import Fields, View
from skylark.mqconsole.web.site import Site, client_host, own_page

#: The most bytes of the form: a name, a secret, and the next page.
MOST_LOGIN_BYTES: Final = 16 * 1024


def add_login(site: Site) -> None:
    """Register the pages."""
    people = site.people

    async def show() -> Response:
        if g.person is not None:
            return _to(_next(request.args.get("next", "")))
        return await site.render("login.html", View("Log in", {"next": _next(request.args.get("next", ""))}))

    async def log_in() -> Response:
        site.check_size(MOST_LOGIN_BYTES)
        form = await request.form
        site.check_form(form)
        name, host = Fields(form).text("name"), client_host(request)
        try:
            session_id = await people.enter(name, form.get("secret", ""), host)
        except LoginFailed as error:
            site.audit(name, Role.NOBODY.title, "log_in", "", f"refused: {error}")
            view = View("Log in", {"next": _next(form.get("next", "")), "failure": str(error), "name": printable(name)})
            return await site.render("login.html", view, 401)
        people.leave(g.session_id)
        person = people.find(session_id)
        site.audit(name, person.role.title if person else "", "log_in", "", "done")
        response = _to(_next(form.get("next", "")))
        site.set_cookie(response, session_id)
        return response

    async def log_out() -> Response:
        site.check_size(MOST_LOGIN_BYTES)
        site.check_form(await request.form)
        if g.person is not None:
            site.audit(g.person.name, g.person.role.title, "log_out", "", "done")
        people.leave(g.session_id)
        return _to("/login")

    if people.has_login:
        site.open_to_all("/login", "GET", show)
        site.open_to_all("/login", "POST", log_in)
        site.open_to_all("/logout", "POST", log_out)


def _next(location: str) -> str:
    """A page of this console, never another site."""
    return own_page(location) or "/"


def _to(location: str) -> Response:
    response = redirect(location, 303)
    assert isinstance(response, Response)
    return response
