"""sentence-transformers' own tests, with embedlib's inference; see __main__."""
