"""Encoders that give the ids of a ``tokenizers.Tokenizer``, most of them faster."""
