"""The priority order (paper 004): urgent messages overtake queued ones at every member alike."""
