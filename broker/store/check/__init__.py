"""What is wrong with the store of a stopped broker, and its repair: ``broker verifyStore``."""
