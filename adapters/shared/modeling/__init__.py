"""Parts of the causal language models that every model factory builds."""
