"""Forward error correction under an order (paper 001): the layer, and its wire form with the erasure code."""
