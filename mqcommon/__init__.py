"""What two or more packages need and what is not part of the wire: messages, files, options, errors, clocks."""
