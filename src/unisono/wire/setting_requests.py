"""Setting requests, which end-of-slot marks and JOINs carry.

A request of the measurement service includes the SLA verdict behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from unisono.model.events import NoticeKind, SlaCleared, SlaVerdict, SlaViolation, ViolationKind
from unisono.model.metrics import METRICS, Shape
from unisono.model.policy import SHARES_MAX
from unisono.model.redundancy import RHO_MAX
from unisono.model.settings import Settings
from unisono.model.sla import value_text
from unisono.model.timing import SLOT_MAX_NS, SLOT_MIN_NS

_SETTING_REQUEST = struct.Struct("!QHB")
SETTING_REQUEST_CONTENT_MAX_BYTES = 160
"""The largest size of the requested settings together with the verdict behind them."""
SETTING_REQUEST_MAX_BYTES = _SETTING_REQUEST.size + SETTING_REQUEST_CONTENT_MAX_BYTES
"""The largest size of an encoded request."""
_SETTINGS = struct.Struct("!BBQQHHQ")
_COPIES, _FEC, _THETA = 1, 2, 4


@dataclass(frozen=True, slots=True, order=True)
class SettingRequest:
    """The settings that a member needs, and the slot in which it first requested them. Repetitions are identical."""

    origin_slot: int
    member: int
    content: bytes


def encode_setting_requests(requests: Iterable[SettingRequest]) -> bytes:
    """Encode the requests one after the other."""
    return b"".join(_SETTING_REQUEST.pack(r.origin_slot, r.member, len(r.content)) + r.content for r in requests)


def decode_setting_requests(body: bytes) -> tuple[SettingRequest, ...] | None:
    """Decode requests; None if they are malformed."""
    found, at = [], 0
    while at < len(body):
        if at + _SETTING_REQUEST.size > len(body):
            return None
        origin, member, size = _SETTING_REQUEST.unpack_from(body, at)
        at += _SETTING_REQUEST.size
        content = body[at : at + size]
        if not 0 < size <= SETTING_REQUEST_CONTENT_MAX_BYTES or len(content) != size or origin >= 2**62:
            return None
        found.append(SettingRequest(origin, member, content))
        at += size
    return tuple(found)


def encode_settings(settings: Settings) -> bytes:
    """Encode which settings are requested, then the value of each setting, 0 if it is not requested."""
    requested = (
        (_COPIES if settings.redundancy is not None else 0)
        | (_FEC if settings.fec is not None else 0)
        | (_THETA if settings.theta_ns is not None else 0)
    )
    values = (*(settings.redundancy or (0, 0, 0)), *(settings.fec or (0, 0)), settings.theta_ns or 0)
    return _SETTINGS.pack(requested, *values)


def decode_settings(body: bytes) -> Settings | None:
    """Decode settings; None if they are malformed or out of range."""
    if len(body) != _SETTINGS.size:
        return None
    requested, rho, eta_ns, omega_ns, a, b, theta_ns = _SETTINGS.unpack(body)
    if requested & ~(_COPIES | _FEC | _THETA):
        return None
    if requested & _COPIES and not (rho <= RHO_MAX and 1_000 <= eta_ns < 2**62 and omega_ns < 2**62):
        return None
    if requested & _FEC and not 0 < a < b <= SHARES_MAX:
        return None
    if requested & _THETA and not SLOT_MIN_NS <= theta_ns <= SLOT_MAX_NS:
        return None
    return Settings(
        (rho, eta_ns, omega_ns) if requested & _COPIES else None,
        (a, b) if requested & _FEC else None,
        theta_ns if requested & _THETA else None,
    )


# -- with a verdict of the measurement service -----------------------------------------------------------------

_VERDICT = struct.Struct("!B8sHHQQdddB")
NAME_MAX_BYTES = 60
"""The name of an agreement is truncated to this many bytes."""


def encode_settings_with_verdict(settings: Settings, event: SlaVerdict | None = None) -> bytes:
    """Encode settings and, if given, the verdict on the whole group that led to them."""
    body = encode_settings(settings)
    if event is None:
        return body
    violated = isinstance(event, SlaViolation)
    metric, bound, measured, probability, link = "", 0.0, 0.0, 0.0, 0
    if isinstance(event, SlaViolation):
        metric, bound, measured = event.metric, event.bound, event.measured
        probability, link = event.probability, event.link
    name = event.sla.encode()[:NAME_MAX_BYTES].decode(errors="ignore").encode()
    return (
        body
        + _VERDICT.pack(
            *(violated, bytes.fromhex(event.id), event.member or 0, link),
            *(event.window_start_ns, event.window_ns, bound, measured, probability, len(name)),
        )
        + name
        + metric.encode()
    )


def decode_settings_with_verdict(body: bytes) -> tuple[Settings, SlaVerdict | None] | None:
    """Decode settings and the optional verdict; None if they are malformed."""
    settings, rest = decode_settings(body[: _SETTINGS.size]), body[_SETTINGS.size :]
    if settings is None or not rest:
        return None if settings is None else (settings, None)
    if len(rest) < _VERDICT.size:
        return None
    violated, number, member, link, start_ns, window_ns, bound, measured, probability, length = _VERDICT.unpack_from(
        rest
    )
    try:
        name = rest[_VERDICT.size : _VERDICT.size + length].decode()
        metric = rest[_VERDICT.size + length :].decode()
    except UnicodeDecodeError:
        return None
    if violated > 1 or not name or not name.isprintable() or metric not in (METRICS if violated else ("",)):
        return None
    if not all(map(isfinite, (bound, measured, probability))) or max(start_ns, window_ns) >= 2**63:
        return None
    about_member, verdict_id = member or None, number.hex()
    if not violated:
        text = f"{name!r} is kept again in the whole group"
        return settings, SlaCleared(
            *(NoticeKind.SYSTEM_SLA_CLEARED, text, about_member),
            sla=name,
            window_start_ns=start_ns,
            window_ns=window_ns,
            id=verdict_id,
        )
    value = f"{value_text(metric, measured)}" if METRICS[metric].shape is Shape.SHARE else f"{measured:.4%} within"
    at = f" at member {member}" if member else ""
    text = f"{name!r} is violated in the group: {metric}{at} {value}, agreed was {value_text(metric, bound)}"
    event = SlaViolation(
        *(ViolationKind.SYSTEM_SLA, text, about_member),
        sla=name,
        metric=metric,
        bound=bound,
        measured=measured,
        probability=probability,
        link=link,
        window_start_ns=start_ns,
        window_ns=window_ns,
        id=verdict_id,
    )
    return settings, event
