"""The laws of the house as tests: style that is not a test is a wish."""
