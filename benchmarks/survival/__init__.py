"""What a run does on a machine that has less to give, and what watching over it costs."""
