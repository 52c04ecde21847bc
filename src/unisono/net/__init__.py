"""Layers between an order and the network. Each layer wraps or opens frames; none uses sockets.

`layer.py` holds the contract that lets them compose.
"""
