"""The daemon ``mqconsole``: a console in the browser, on top of the SDK.

watching/    asks all brokers every few seconds, once for all visitors; history of lag and rates in memory
people/      the visitors: login, sessions, roles, connections with each person's credentials
showing/     pure: tables that sort and filter, charts as SVG and CSV, previews of bodies, times and sizes as text
web/         pages, changes, the guard in front of both; templates/ and static/ are for browsers
console.py   starts all parts; cli.py and options.py: the command line

Each page has the same figures as JSON below /api. A page that changes nothing is a GET; each change is a POST with a
token, and leaves a line of skylark.mqconsole.audit in the log.
"""

if __name__ == "mqconsole":
    from skylark.old_names import lend

    lend(__name__)
