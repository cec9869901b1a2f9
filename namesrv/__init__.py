"""The NameServer: brokers register, clients ask where a topic is. Only the KV config is on disk.

cli.py __main__.py    the command
options.py            what can be set
namesrv.py            wiring, and the loop that removes silent brokers
state.py              what the handlers share
handlers.py           requests of brokers and clients
config_handlers.py    requests about KV config and options, which write files
register.py           registrations (103, 104), large ones in steps
notices.py            tells slaves when the lowest member of their set changes (905)
kvconfig.py           kvConfig.json

Pure, without I/O:
routes.py             the route table; all decisions are here
registration.py       what a broker registers, and what is kept about it
parts.py              registrations that come in several parts
checks.py             which names and numbers of a registration are accepted
rivals.py             brokers that claim the same name and id
min_broker.py         the member of a set with the lowest id
"""
