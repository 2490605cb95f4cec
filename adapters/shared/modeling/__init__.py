"""Parts of causal language models that all model factories share."""
