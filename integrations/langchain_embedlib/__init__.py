"""The home of embedlib's LangChain embeddings class; there is nothing in it yet."""
