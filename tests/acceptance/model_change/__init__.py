"""Changes of model that are killed while clients search."""
