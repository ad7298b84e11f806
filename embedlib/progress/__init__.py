"""How far some work has come, and what shows it."""
