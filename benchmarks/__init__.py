"""Each figure of docs/benchmarks.md comes from one script here, with its peers in the same run."""
