"""Forward error correction under an order (paper 001): the layer, its wire form, and the erasure code."""
