"""Threads that work for a model: how they start, what interrupts them, how they end."""
