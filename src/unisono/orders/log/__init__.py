"""Total order over consensus: one agreed log."""
