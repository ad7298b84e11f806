"""Jobs that survive: files, batches and asynchronous requests, kept in a folder.

What was accepted is on disk before the answer. Requests are answered by an `Answerer` that is
handed in; rows and webhooks are worded as the clients of OpenAI and Baseten read them.
"""
