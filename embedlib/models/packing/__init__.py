"""A model as one file, a pack: written, and checked when it is opened (`reading.pack_file`)."""
