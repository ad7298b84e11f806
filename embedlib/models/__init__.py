"""What a model is: a folder of files in, a frozen `ModelSpec` and named float32 weights out."""
