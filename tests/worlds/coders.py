"""The choice of the erasure coder, made again."""

from unisono.net.fec import shares


def forget_coders() -> None:
    """Let each block shape choose its erasure coder again."""
    shares._encoder.cache_clear()
    shares._decoder.cache_clear()
