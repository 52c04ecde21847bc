"""Small programs that show how the parts go together. Each is a package with its own `__main__`."""
