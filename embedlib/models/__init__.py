"""What a model is: reads a model folder into a frozen `ModelSpec` and named float32 weights."""
