"""The table of model families, keyed by the `model_type` of config.json."""
