from sdk.testing import cluster

__all__ = ["cluster"]
