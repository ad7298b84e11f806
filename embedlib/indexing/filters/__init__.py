"""Filters on metadata: one small language, the same for every destination."""
