"""The third stage: the data of a run, its tokenizer, and what is held out."""
