"""The NameServer: brokers register, clients ask where a topic is. All of it is in memory, but for the KV config.

cli.py __main__.py    the command
options.py            what can be set
namesrv.py            wiring, and the loop that forgets silent brokers
state.py              what the handlers share
handlers.py           requests of brokers and clients
config_handlers.py    requests about KV config and options, which write files
routes.py             the route table: pure, all the thinking
kvconfig.py           kvConfig.json
"""
