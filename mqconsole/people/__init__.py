"""Who is at the browser.

roles.py      reader, operator, admin; which of them brokers' answers make of a user
tokens.py     signed cookies, tokens of forms, and the limit of attempts to log in (pure)
person.py     a person's connections, with that person's credentials
people.py     those who are logged in; login and logout
"""
