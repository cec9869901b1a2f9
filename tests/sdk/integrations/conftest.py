from tests.support.spans import seen

__all__ = ["seen"]
