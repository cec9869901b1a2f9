"""Options: one frozen dataclass per daemon declares all of them, with their defaults.

fields.py         declares an option, and reads its value from text
conf_file.py      conf files; getBrokerConfig and updateBrokerConfig
environment.py    environment variables
command_line.py   flags, and the table in docs/reference/conf.md
"""
