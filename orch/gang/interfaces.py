"""This machine's addresses, by interface: which of them collectives and control connections use."""

from __future__ import annotations

import ipaddress
import socket
import struct

from orch.errors import OrchError, did_you_mean, quoted
from orch.track import settings

_SIOCGIFADDR = 0x8915
_ELSEWHERE = ("192.0.2.1", 9)  # kept free for documentation (RFC 5737): only asked which way it would go, never sent to


def addresses() -> dict[str, str]:
    """Return the IPv4 address of every interface that has one."""
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def address_of(names: str) -> str:
    """Return the address of the first interface of `names` (`ib0,eth1`) that this machine has. OrchError: it has none."""
    here = addresses()
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name in here:
            return here[name]
    shown = ", ".join(f"{name} {address}" for name, address in here.items()) or "none"
    hint = f"{did_you_mean(wanted[0], here) if wanted else ''} there are {shown}".strip()
    text = (
        f"{settings.INTERFACE_VARIABLE}: {socket.gethostname()} has no interface {quoted(names)} with an IPv4 address"
    )
    raise OrchError(text, code="E726", hint=hint)


def own_address(towards: str) -> str:
    """Return this machine's address on its way to the host `towards`; never a loopback address if there is another."""
    found = _way((towards, 9))
    return _way(_ELSEWHERE) or found or "127.0.0.1" if is_loopback(found) else found


def chosen_address() -> str:
    """Return the address on which other machines are to meet this one: of the interface that was asked for, if any was."""
    names = settings.interface()
    return address_of(names) if names else own_address(_ELSEWHERE[0])


def is_loopback(address: str) -> bool:
    """Tell whether an address leads nowhere but here; an empty one does."""
    return not address or ipaddress.ip_address(address).is_loopback


def _way(target: tuple[str, int]) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError:
            return ""
        return str(probe.getsockname()[0])
