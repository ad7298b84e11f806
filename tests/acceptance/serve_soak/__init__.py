"""A server under load for long; see __main__."""
