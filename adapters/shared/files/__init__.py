"""Files of a run: durable operations, records, heartbeats."""
