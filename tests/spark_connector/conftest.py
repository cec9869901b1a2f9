from tests.support.spans import seen
from tests.support.spark import spark

__all__ = ["seen", "spark"]
