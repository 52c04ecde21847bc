"""The CBR order (paper 000 §4): turns and rates."""
