"""How a model is to run here: memory, layout, and what helps where it does not fit."""
