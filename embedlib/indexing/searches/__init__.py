"""Searches in a destination: what they ask, and what becomes of the rows that are found."""
