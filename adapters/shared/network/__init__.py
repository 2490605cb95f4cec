"""Communication with other machines: retries, the hub, ranks."""
