"""Where vectors go: the protocol of a destination, its URL, and the sinks that write files."""
