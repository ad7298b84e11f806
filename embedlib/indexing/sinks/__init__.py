"""Destinations: the sink protocol, sink URLs, and the sinks that write files."""
