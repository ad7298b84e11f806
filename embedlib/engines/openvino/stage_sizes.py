"""Into how many stages a graph is cut, and when their memory is returned."""

from __future__ import annotations

from typing import Final

MAX_STAGES: Final = 8
"""A query waits for one of them at most. So a batch of eight times as many tokens as a query costs
it about as much as another query; more stages gain little and have threads of their own."""
MIN_TRIMMED_ROWS: Final = 256
"""Tokens of a batch from which on what a stage lets go is returned to the system. glibc keeps it
otherwise, in pieces that the next stage cannot use; returning takes milliseconds. Source:
docs/benchmarks.md, memory of the CPU engine."""
