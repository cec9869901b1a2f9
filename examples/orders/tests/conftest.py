from skylark.testing import cluster

__all__ = ["cluster"]
