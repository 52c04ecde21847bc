"""A demand for settings as bytes."""

from __future__ import annotations

import struct

from unisono.model.redundancy import RHO_MAX
from unisono.model.settings import Settings
from unisono.model.timing import SLOT_MAX_NS, SLOT_MIN_NS
from unisono.wire.fec import SHARES_MAX

_SETTINGS = struct.Struct("!BBQQHHQ")
_COPIES, _FEC, _THETA = 1, 2, 4


def encode_settings(settings: Settings) -> bytes:
    """Which of them are demanded, then all of them."""
    given = (
        (_COPIES if settings.copies is not None else 0)
        | (_FEC if settings.fec is not None else 0)
        | (_THETA if settings.theta_ns is not None else 0)
    )
    return _SETTINGS.pack(given, *(settings.copies or (0, 0, 0)), *(settings.fec or (0, 0)), settings.theta_ns or 0)


def decode_settings(body: bytes) -> Settings | None:
    """The settings, or None if there are no such."""
    if len(body) != _SETTINGS.size:
        return None
    given, rho, eta_ns, omega_ns, a, b, theta_ns = _SETTINGS.unpack(body)
    if given & ~(_COPIES | _FEC | _THETA):
        return None
    if given & _COPIES and not (rho <= RHO_MAX and 1_000 <= eta_ns < 2**62 and omega_ns < 2**62):
        return None
    if given & _FEC and not 0 < a < b <= SHARES_MAX:
        return None
    if given & _THETA and not SLOT_MIN_NS <= theta_ns <= SLOT_MAX_NS:
        return None
    return Settings(
        (rho, eta_ns, omega_ns) if given & _COPIES else None,
        (a, b) if given & _FEC else None,
        theta_ns if given & _THETA else None,
    )
