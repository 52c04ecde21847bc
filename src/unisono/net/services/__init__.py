"""Services over reliable multicast: FIFO, causal and uniform delivery (paper 002 §2.2)."""
