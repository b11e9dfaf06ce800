"""Certificates and keys of a federation: one authority, the server's, one key pair per client.

TLS shows the clients that the server is the right one; the clients' keys show the server who they
are. ``ca.key`` signs new server certificates and can stay on the machine that made it; a client's
machine needs ``ca.crt`` and its own ``clients/K.key``, nothing else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.files import write_atomically

ALWAYS = ("localhost", "127.0.0.1")  #: names that the server's own programs use
SECRET, PUBLIC = 0o600, 0o644
MAX_CLIENTS, MAX_DAYS = 100_000, 36_500
AUTHORITY_DAYS = 3650  #: long, since a new authority means a new ca.crt for everybody
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@final
@dataclass(frozen=True)
class Certificates:
    """The files in ``folder``; they need not exist. On a client's machine they may lie elsewhere.

    ``keys``: the folder of the clients' keys, if not ``folder/clients``; ``authority``: the file of
    the authority's certificate, if not ``folder/ca.crt``.
    """

    folder: Path
    keys: Path | None = None
    authority: Path | None = None

    @property
    def ca(self) -> Path:
        """The authority's certificate: public, at the server and at every client."""
        return self.authority or self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    @property
    def clients(self) -> Path:
        """The folder of the clients' keys, ``K.key`` and ``K.pub``."""
        return self.keys or self.folder / "clients"

    def key(self, k: int) -> Path:
        """Client k's private key."""
        return self.clients / f"{k}.key"

    def public(self, k: int) -> Path:
        """Client k's public key, which the SuperLink is told."""
        return self.clients / f"{k}.pub"


def make(folder: Path, hosts: Sequence[str], clients: int, days: int = 365) -> Certificates:
    """Make what is missing in ``folder``; what is there stays, except the server's certificate.

    The server's certificate is made anew with every call, signed by the same authority, so that
    clients need nothing new when it expires or the server moves. Private keys get mode 0600.

    Args:
        hosts: names and addresses under which clients reach the server; ``localhost`` and
            ``127.0.0.1`` are always among them. Empty: those of the certificate that is there.
        clients: the number of clients, 0 … ``clients`` − 1.
        days: how long the server's certificate is valid, but no longer than the authority's, which
            is made for ten years, or ``days`` if that is more.

    Raises:
        ValueError: a host that is neither a name nor an address, a number out of range, or an
            authority that has expired.
        OSError: the folder cannot be written.
    """
    names = _names([*hosts, *ALWAYS])
    _within("--clients", clients, 0, MAX_CLIENTS)
    _within("--days", days, 1, MAX_DAYS)
    files = Certificates(folder)
    if files.ca.exists() != files.ca_key.exists():
        there, lacking = (files.ca, files.ca_key) if files.ca.exists() else (files.ca_key, files.ca)
        raise ValueError(f"{there} is there without {lacking}: bring it or name another folder")
    files.clients.mkdir(parents=True, exist_ok=True)
    files.clients.chmod(0o755)
    if not files.ca.exists():
        _authority(files, max(days, AUTHORITY_DAYS))
    _server(files, names if hosts else _former(files) or names, days)
    for k in range(clients):
        if not files.key(k).exists():
            _client(files, k)
    return files


def _authority(files: Certificates, days: int) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmosaic authority")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _signed_for(name, name, key.public_key(), timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write(files.ca_key, _pem(key), SECRET)
    _write(files.ca, certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)


def _server(files: Certificates, names: Sequence[x509.GeneralName], days: int) -> None:
    try:
        authority = x509.load_pem_x509_certificate(files.ca.read_bytes())
        signer = serialization.load_pem_private_key(files.ca_key.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{files.ca} and {files.ca_key} cannot be read: {error}") from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{files.ca_key} is no elliptic-curve key")
    if signer.public_key() != authority.public_key():
        raise ValueError(f"{files.ca_key} is not the key of {files.ca}")
    left = authority.not_valid_after_utc - datetime.now(UTC)
    if left <= timedelta(0):
        raise ValueError(
            f"{files.ca} expired on {authority.not_valid_after_utc:%Y-%m-%d}: make a new authority "
            "in another folder, and give its ca.crt to all clients"
        )
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmosaic server")])
    certificate = (
        _signed_for(name, authority.subject, key.public_key(), min(timedelta(days=days), left))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA384())
    )
    _write(files.server_key, _pem(key), SECRET)
    _write(files.server, certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)


def _client(files: Certificates, k: int) -> None:
    key = ec.generate_private_key(ec.SECP384R1())  # a NIST curve, as Flower demands
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    _write(files.public(k), public + f" client-{k}\n".encode(), PUBLIC)
    _write(files.key(k), private, SECRET)


def _signed_for(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + valid)
    )


def _former(files: Certificates) -> list[x509.GeneralName]:
    """The names in the server's certificate; none, if there is none that can be read."""
    try:
        certificate = x509.load_pem_x509_certificate(files.server.read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return list(found.value)


def _names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    names: dict[str, x509.GeneralName] = {}
    for host in hosts:
        with contextlib.suppress(ValueError):
            names[host] = x509.IPAddress(ipaddress.ip_address(host))
            continue
        labels = host.split(".")
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
            raise ValueError(
                f"--host {host!r} is neither a host name nor an address; allowed are, for example, "
                "fed.example.org or 192.0.2.7, without port or scheme"
            )
        if labels[-1].isdigit():
            raise ValueError(f"--host {host!r} is no valid address")
        names[host] = x509.DNSName(host)
    return list(names.values())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Atomically, and never readable by others for a moment if ``mode`` says so."""
    before = os.umask(0o077)
    try:
        write_atomically(path, content)
    finally:
        os.umask(before)
    path.chmod(mode)


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{what} {value} is not allowed; it should be {low} to {high}")
