"""Whom the benchmark races: libraries and servers, each in a process of its own."""
