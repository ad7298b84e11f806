"""Python packages: optional ones, those of the program, and names that come from either late."""
