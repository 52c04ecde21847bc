"""Layers between an order and the network: each wraps or opens frames and knows nothing of sockets.

`layer.py` is the contract that lets them compose.
"""
