"""The visitors.

roles.py      reader, operator, admin; a user's role by the brokers' answers
tokens.py     signed cookies, tokens of forms, and the limit of attempts to log in (pure)
person.py     a person's connections, with that person's credentials
people.py     all who are logged in; login and logout
"""
