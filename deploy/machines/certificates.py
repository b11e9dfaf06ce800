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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
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

    A public key that is missing is made from the private one.

    The server's certificate is made anew with every call, signed by the same authority, so that
    clients need nothing new when it expires or the server moves. Private keys get mode 0600.

    ``hosts``: names and addresses under which clients reach the server; ``localhost`` and
    ``127.0.0.1`` are always among them. Empty: those of the certificate that is there; ``clients``:
    the number of clients, 0 … ``clients`` − 1; ``days``: how long the server's certificate is
    valid, but no longer than the authority's, which is made for ten years, or ``days`` if that is
    more.

    Raises ``ValueError``: a host that is neither a name nor an address, a number out of range, a
    file that is damaged, or an authority that has expired. ``OSError``: the folder cannot be
    written.
    """
    names = _names([*hosts, *ALWAYS])
    _within("--clients", clients, 0, MAX_CLIENTS)
    _within("--days", days, 1, MAX_DAYS)
    files = Certificates(folder)
    if files.ca.is_file() != files.ca_key.is_file():
        there, lacking = files.ca, files.ca_key
        if files.ca_key.is_file():
            there, lacking = lacking, there
        raise ValueError(f"{there} is there without {lacking}: bring it or name another folder")
    files.clients.mkdir(parents=True, exist_ok=True)
    files.clients.chmod(0o755)
    if not files.ca.is_file():
        _authority(files, max(days, AUTHORITY_DAYS))
    _server(files, names if hosts else _former(files) or names, days)
    for k in range(clients):
        if not files.key(k).is_file():
            _client(files, k)
    for path in files.clients.glob("[0-9]*.key"):
        if not path.with_suffix(".pub").is_file():
            _publish(path)
    return files


def _authority(files: Certificates, days: int) -> None:
    # key_cert_sign and crl_sign: its key signs certificates and lists of them, and nothing else
    uses = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    _issue((files.ca_key, files.ca), "authority", timedelta(days=days), [constraints, uses], [])


def _server(files: Certificates, names: Sequence[x509.GeneralName], days: int) -> None:
    authority = read_certificate(files.ca)
    signer = _private_key(files.ca_key, serialization.load_pem_private_key, "key")
    if signer.public_key() != authority.public_key():
        raise ValueError(f"{files.ca_key} is not the key of {files.ca}")
    left = authority.not_valid_after_utc - datetime.now(UTC)
    if left <= timedelta(0):
        raise ValueError(
            f"{files.ca} expired on {authority.not_valid_after_utc:%Y-%m-%d}: make a new authority "
            "in another folder, and give its ca.crt to all clients"
        )
    _issue(
        (files.server_key, files.server),
        "server",
        min(timedelta(days=days), left),
        [x509.BasicConstraints(ca=False, path_length=None)],
        [
            x509.SubjectAlternativeName(names),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        ],
        (authority.subject, signer),
    )


def _issue(
    places: tuple[Path, Path],
    name: str,
    valid: timedelta,
    critical: Sequence[x509.ExtensionType],
    others: Sequence[x509.ExtensionType],
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
) -> None:
    """Write a new key and its certificate to ``places``; without an ``issuer`` it is its own."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedmosaic {name}")])
    by, signer = issuer or (subject, key)
    identifier: x509.ExtensionType = (
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        if issuer
        else x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    )
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + valid)
    )
    for extension in (*critical, *others, identifier):
        builder = builder.add_extension(extension, critical=extension in critical)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    certificate = builder.sign(signer, hashes.SHA384()).public_bytes(pem)
    _write((places[0], private, SECRET), (places[1], certificate, PUBLIC))


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in ``path``.

    Raises ``ValueError``: it holds none that can be read. ``OSError``: the file cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path} cannot be read: it holds no certificate") from None


def ssh_key(path: Path, remedy: str = "") -> ec.EllipticCurvePrivateKey:
    """A client's private key; raises ``ValueError``, with the remedy, for a file that is none."""
    return _private_key(path, serialization.load_ssh_private_key, "OpenSSH key", remedy)


def _private_key(
    path: Path, load: Callable[[bytes, None], object], kind: str, remedy: str = ""
) -> ec.EllipticCurvePrivateKey:
    try:
        key = load(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(
            f"{path} cannot be read: it holds no {kind} without a password{remedy}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no elliptic-curve key{remedy}")
    return key


def _client(files: Certificates, k: int) -> None:
    key = ec.generate_private_key(ec.SECP384R1())  # a NIST curve, as Flower demands
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    _write((files.public(k), _openssh(key, str(k)), PUBLIC), (files.key(k), private, SECRET))


def _publish(path: Path) -> None:
    """Make the public key beside the private key of a client."""
    key = ssh_key(path, "; delete it to have a new one made")
    _write((path.with_suffix(".pub"), _openssh(key, path.stem), PUBLIC))


def _openssh(key: ec.EllipticCurvePrivateKey, k: str) -> bytes:
    """The public key of client ``k`` as the line of its file."""
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return public + f" client-{k}\n".encode()


def _former(files: Certificates) -> list[x509.GeneralName]:
    """The names in the server's certificate; none, if there is none that can be read."""
    try:
        certificate = read_certificate(files.server)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return list(found.value)


def _names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    names: dict[str, x509.GeneralName] = {}
    for host in hosts:
        try:
            names[host] = general_name(host)
        except ValueError as error:
            raise ValueError(f"--host {error}") from None
    return list(names.values())


def general_name(host: str) -> x509.DNSName | x509.IPAddress:
    """A host name or an address as certificates know it.

    Raises ``ValueError``: it is neither, or an address with a scope; the message begins with
    ``host``.
    """
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if not getattr(address, "scope_id", None):
            return x509.IPAddress(address)
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(
            f"{host!r} is neither a host name nor an address; allowed are, for example, "
            "fed.example.org or 192.0.2.7, without port, scheme or scope"
        )
    if labels[-1].isdigit():
        raise ValueError(f"{host!r} is no valid address")
    return x509.DNSName(host)


def _write(*files: tuple[Path, bytes, int]) -> None:
    """Write files that belong together: path, content and mode of each.

    If one cannot be written, for example on a full disk, all stay as they were. A secret is never
    readable by others for a moment.
    """
    ready = [path.with_name(f".{path.name}.new") for path, _, _ in files]
    before = os.umask(0o077)
    try:
        for new, (_, content, mode) in zip(ready, files, strict=True):
            write_atomically(new, content)
            new.chmod(mode)
        for new, (path, _, _) in zip(ready, files, strict=True):
            os.replace(new, path)
    finally:
        os.umask(before)
        for new in ready:
            new.unlink(missing_ok=True)


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{what} {value} is not allowed; it should be {low} to {high}")
