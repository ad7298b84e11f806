"""Compiled models and their requests: made, asked, freed in a fixed order."""
