"""Arithmetic on vectors that are there: compared, quantized, weighted, written to files."""
