"""A request: its head and its body, within bounds, and what its handler is given."""
