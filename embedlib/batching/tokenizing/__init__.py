"""Texts and pairs of texts to sequences: token ids, windows, and what is refused."""
