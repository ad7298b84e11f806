"""Sources: what a load reads, such as files, folders and SQL queries."""
