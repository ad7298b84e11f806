"""Tiny models of every family that embedlib supports, with seeded weights."""
