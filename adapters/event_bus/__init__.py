"""Event buses: how facts reach those who handle them."""
