"""What the benchmarks share: processes, texts, the chip's own limit, provenance."""
