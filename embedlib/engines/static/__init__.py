"""The engine of static models: a table of token vectors, and their mean."""
