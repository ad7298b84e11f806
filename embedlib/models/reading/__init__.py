"""From the JSON files of a model folder to its `ModelSpec`; what is not understood is refused."""
