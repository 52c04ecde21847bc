"""Monitoring: meters at layer boundaries, and the evaluation of service level agreements (paper 002 §2.4)."""
