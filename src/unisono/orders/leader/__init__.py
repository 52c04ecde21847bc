"""The leader orders (paper 000 §8): leader broadcast, timestamp leader, election."""
