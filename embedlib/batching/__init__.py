"""From texts to batches: tokenizer thread, scheduler and batch manager."""
