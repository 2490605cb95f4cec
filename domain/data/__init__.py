"""Order, packing and mixture of samples as arithmetic."""
