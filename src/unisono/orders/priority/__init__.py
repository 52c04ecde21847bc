"""The priority order (paper 004): messages that overtake queued ones at every member alike."""
