"""The fourth stage: tokens, rows and the stream of batches."""
