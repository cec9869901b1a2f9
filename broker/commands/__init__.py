"""The subcommands of ``broker``, which work on the store or the metadata of a stopped broker."""
