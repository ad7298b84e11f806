"""Settings: options that hold where nobody gives them, from the environment and from files."""
