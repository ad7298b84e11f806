"""What is kept on disk: compiled graphs, with or without weights, and weights in float32."""
