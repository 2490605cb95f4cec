"""Code that the adapters of several ports share; it knows no port's adapter."""
