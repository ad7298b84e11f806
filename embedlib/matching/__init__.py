"""Vectors that another library, server or API made, compared with those that a model makes here."""
