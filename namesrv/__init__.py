"""The NameServer: brokers register, clients ask where a topic is. Only the KV config is on disk.

cli.py __main__.py    the command; options.py: its options
namesrv.py            wiring, and the loop that removes silent brokers
state.py              what the handlers share
handlers.py           requests of brokers and clients
register.py           registrations (103, 104), large ones in steps
config_handlers.py    requests about options and KV config (kvconfig.py), which write files
notices.py            tells slaves when the lowest member of their set (min_broker.py) changes
Pure, without I/O:
routes.py             the route table; all decisions are here
registration.py       what a broker registers; parts.py: registrations in several parts
checks.py             which names and numbers of a registration are accepted
rivals.py             brokers that claim the same name and id
"""
