"""The HTTP server: connections of uvicorn's, within bounds of time and memory."""
