"""What benchmarks share: processes, texts, the machine's own limit, spread, provenance."""
