"""Every fault in every mode that has it, each under load: scripts/faults makes a page of what was lost."""
