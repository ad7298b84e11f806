"""One model's life: how it is loaded, how a call runs through it, and how it is closed."""
