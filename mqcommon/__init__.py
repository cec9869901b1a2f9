"""What two or more packages need and what is not part of the wire: messages, files, options, errors, clocks."""

if __name__ == "mqcommon":
    from skylark.old_names import lend

    lend(__name__)
