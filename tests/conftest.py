"""Hypothesis profiles. A property is judged by its answer and never by how long this machine took."""

import os

from hypothesis import settings

# print_blob: a failure prints the decorator that replays it.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")
