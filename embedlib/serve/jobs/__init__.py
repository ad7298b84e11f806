"""Jobs that survive: files, batches and asynchronous requests, kept in a folder.

What was accepted is on disk before the answer. Nothing here knows paths or dialects: requests are
answered by an `Answerer` that is handed in.
"""
