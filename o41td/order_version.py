"""The version of the order, apart from the order itself: who only compares it need not import NumPy."""

__all__ = ["ORDER_VERSION"]

ORDER_VERSION = 2
"""Version of the order; in every checkpoint."""
