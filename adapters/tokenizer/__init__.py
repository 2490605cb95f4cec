"""Answers to the Tokenizer port."""
