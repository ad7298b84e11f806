"""Where documents come from: files, rows of tables, and their fields."""
