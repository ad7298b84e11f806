"""Other servers' own tests, against `embedlib serve`; see __main__."""
