"""The languages of clients: their paths, bodies and errors, to the letter of each."""
