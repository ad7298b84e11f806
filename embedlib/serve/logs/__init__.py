"""What a server logs: a line for each request, and its faults."""
