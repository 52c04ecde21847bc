"""Total order by consensus: the members agree on one log."""
