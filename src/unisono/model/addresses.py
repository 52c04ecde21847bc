"""Addresses of members as text: `HOST:PORT`, with brackets around an IPv6 address."""

from __future__ import annotations

import ipaddress

from unisono.errors import InvalidOption


def parse_address(field: str, value: object) -> tuple[str, int]:
    """Parse an address, given as text or as (host, port). Raises InvalidOption, which names `field`."""
    match value:
        case str():
            host, _, port = value.rpartition(":")
            if ":" in host and not (host.startswith("[") and host.endswith("]")):
                raise InvalidOption(
                    field, f"expected brackets around an IPv6 address, such as '[::1]:9001', got {value!r}"
                )
        case (str(host), int(number)):
            port = str(number)
        case _:
            host = port = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidOption(field, f"expected an address such as '127.0.0.1:9001', got {value!r}")
    return host.strip("[]"), int(port)


def address_text(address: tuple[str, int]) -> str:
    """An address as text, which `parse_address` reads back."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_unspecified(host: str) -> bool:
    """Whether a host is 0.0.0.0 or ::, which stands for all addresses of a machine, so that no peer can send to it."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return found.is_unspecified or found == ipaddress.ip_address("::ffff:0.0.0.0")


def refuse_unspecified(field: str, host: str) -> None:
    """Raise InvalidOption if a host is 0.0.0.0 or ::, because peers could not send to it."""
    if is_unspecified(host):
        raise InvalidOption(
            field,
            f"{host} stands for all addresses of a machine, so no peer can send to it; give the address at which the "
            "others reach this member, and Network(bind=…) if its socket has to listen at all addresses",
        )
