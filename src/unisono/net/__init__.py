"""Layers between an order and the network. Each wraps or opens frames, and none knows of sockets.

`layer.py` holds the contract that lets them compose.
"""
