"""What an administrator asks and changes. See docs/sdk.md."""

from skylark.sdk.admin.client import Admin

__all__ = ["Admin"]
