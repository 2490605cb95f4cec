"""Code shared by the adapters of several ports; it depends on none of them."""
