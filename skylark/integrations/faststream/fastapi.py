"""`RocketRouter` for FastAPI."""

from skylark.sdk.integrations.faststream.fastapi import RocketRouter

__all__ = ["RocketRouter"]
