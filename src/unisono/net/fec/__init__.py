"""Forward error correction under an order (paper 001): the layer and the bytes of its shares."""
