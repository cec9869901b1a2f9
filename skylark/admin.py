"""Requests of administrators: queries and changes. See docs/sdk.md."""

from skylark.sdk.admin.client import Admin

__all__ = ["Admin"]
