"""Adaptation: network estimates, mechanisms and the controller that changes settings (paper 002 §3.2)."""
