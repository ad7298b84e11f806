"""The models of a server: found by name, loaded, entered, and computed on."""
