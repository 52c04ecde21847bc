"""Small programs that show how to use unisono. Each is a package with its own `__main__`."""
