"""Services above reliable multicast (paper 002 §2.2): FIFO, causal and uniform delivery, one layer each."""
