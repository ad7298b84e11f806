"""Tiny models of every family that embedlib knows, with seeded weights."""
