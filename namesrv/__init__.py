"""The NameServer: brokers register, clients ask where a topic is. Only the KV config is on disk.

cli.py __main__.py    the command; options.py: its options
namesrv.py            wiring, and the loop that removes silent brokers
state.py              what the handlers share
handlers.py           requests of brokers and clients
registration_handlers.py   registrations (103, 104), large ones in steps
config_handlers.py    requests about options and KV config (kvconfig.py), which write files
min_broker_notices.py  tells slaves when the lowest member of their set changes
Pure, without I/O:
routes.py             the route table; all decisions are here
registration.py       what a broker registers, in one part or in several, and what of it is accepted
access.py             who may do what with access control; guard.py asks it for each request
"""

if __name__ == "namesrv":
    from skylark.old_names import lend

    lend(__name__)
