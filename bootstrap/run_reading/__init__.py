"""Reading of run folders while another process may write them: state, metrics, events, checkpoints."""
