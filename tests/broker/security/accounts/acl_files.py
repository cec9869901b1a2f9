"""Files of accounts for tests."""

from pathlib import Path

SECRET = "secret-of-an-account"

ADMIN = f"""
accounts:
- accessKey: admin-account
  secretKey: {SECRET}
  admin: true
"""


def write(path: Path, text: str) -> str:
    """A file with mode 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def account(name: str, *lines: str) -> str:
    """An entry of the list of accounts."""
    return "\n".join([f"- accessKey: {name}", f"  secretKey: {SECRET}", *(f"  {line}" for line in lines)]) + "\n"
