"""Stand-in, see tests/standins/README.md."""
