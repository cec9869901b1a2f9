"""Login and logout. A login makes a new session: an id that somebody knew before the login is worth nothing."""

from typing import Final

from skylark.mqconsole.people.people import LoginFailed
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing.previews import printable
from skylark.mqconsole.web.application import Request, Response, redirect
from skylark.mqconsole.web.asking import Fields, View
from skylark.mqconsole.web.site import Site, own_page

#: The most bytes of the form: a name, a secret, and the next page.
MOST_LOGIN_BYTES: Final = 16 * 1024


def add_login(site: Site) -> None:
    """Register the pages."""
    people = site.people

    async def show(request: Request) -> Response:
        if request.person is not None:
            return redirect(_next(request.args.get("next", "")))
        return site.render(request, "login.html", View("Log in", {"next": _next(request.args.get("next", ""))}))

    async def log_in(request: Request) -> Response:
        site.check_size(request, MOST_LOGIN_BYTES)
        form = await request.form()
        site.check_form(request, form)
        name, host = Fields(form).text("name"), request.client_host
        try:
            session_id = await people.enter(name, form.get("secret", ""), host)
        except LoginFailed as error:
            site.audit(request, name, Role.NOBODY.title, "log_in", "", f"refused: {error}")
            view = View("Log in", {"next": _next(form.get("next", "")), "failure": str(error), "name": printable(name)})
            return site.render(request, "login.html", view, 401)
        people.leave(request.session_id)
        person = people.find(session_id)
        site.audit(request, name, person.role.title if person else "", "log_in", "", "done")
        response = redirect(_next(form.get("next", "")))
        site.set_cookie(response, session_id)
        return response

    async def log_out(request: Request) -> Response:
        site.check_size(request, MOST_LOGIN_BYTES)
        site.check_form(request, await request.form())
        if request.person is not None:
            site.audit(request, request.person.name, request.person.role.title, "log_out", "", "done")
        people.leave(request.session_id)
        return redirect("/login")

    if people.has_login:
        site.open_to_all("/login", "GET", show)
        site.open_to_all("/login", "POST", log_in)
        site.open_to_all("/logout", "POST", log_out)


def _next(location: str) -> str:
    """A page of this console, never another site."""
    return own_page(location) or "/"
