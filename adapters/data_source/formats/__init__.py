"""How the bytes of a file become documents, format by format."""
