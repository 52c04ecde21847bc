"""Replicated state on the two grades of delivery: an optimistic state on what came early, corrected by what is final.

Paper 003 §3.2: each object has a conservative state, an optimistic one, and a queue of the commands that lie between.
"""
