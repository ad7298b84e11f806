"""Loads of every form of source that are killed."""
