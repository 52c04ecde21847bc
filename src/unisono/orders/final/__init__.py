"""Two grades over a slot order: early on time, final by agreement."""
