"""Certificates and keys of a federation: an authority, the server's two, a key pair per client.

The ServerApp has a certificate of its own, with which it seals what it sends to the clients, and
which the SuperLink, where TLS ends, need not see. ``ca.key`` signs new certificates of the server
and can stay on the machine that made it; a client's machine needs ``ca.crt`` and its own
``clients/K.key``, nothing else.
"""

import contextlib
import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.exchange.seal.files import (
    SERVER_APP,
    USE,
    pem_key,
    read_certificate,
    ssh_key,
    ssh_public_key,
)
from common.files import write_atomically

ALWAYS = ("localhost", "127.0.0.1")  #: names that the server's own programs use
SECRET, PUBLIC = 0o600, 0o644
MAX_CLIENTS, MAX_DAYS = 100_000, 36_500
AUTHORITY_DAYS = 3650  #: long, since a new authority means a new ca.crt for everybody
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@final
class Certificates:
    """The files in ``folder``; they need not exist. On a client's machine they may lie elsewhere.

    ``keys``: the folder of the clients' keys, if not ``folder/clients``; ``authority``: the file of
    the authority's certificate, if not ``folder/ca.crt``.
    """

    def __init__(
        self, folder: Path, keys: Path | None = None, authority: Path | None = None
    ) -> None:
        self.folder = folder
        self.ca = authority or folder / "ca.crt"  #: public, at the server and at every client
        self.server, self.server_key = folder / "server.crt", folder / "server.key"
        self.app, self.app_key = folder / "serverapp.crt", folder / "serverapp.key"
        self.ca_key = folder / "ca.key"
        self.clients = keys or folder / "clients"  #: has ``K.key`` and ``K.pub``

    def key(self, k: int) -> Path:
        """Client k's private key."""
        return self.clients / f"{k}.key"

    def public(self, k: int) -> Path:
        """Client k's public key, which the SuperLink is told."""
        return self.clients / f"{k}.pub"


def make(folder: Path, hosts: Sequence[str], clients: int, days: int = 365) -> Certificates:
    """Make what is missing in ``folder``; a missing public key is made from the private one.

    The certificates of the server and of the ServerApp are made anew with every call, signed by
    the same authority, so that clients need nothing new when they expire or the server moves.

    ``hosts``: names and addresses under which clients reach the server, beside ``ALWAYS``; empty:
    those of the certificate that is there; ``days``: how long the server's certificate is valid,
    but no longer than the authority's, which is made for ``AUTHORITY_DAYS``, or ``days`` if that
    is more.

    Raises ``ValueError``: an argument is wrong, a file is damaged, or the authority has expired.
    ``OSError``: the folder cannot be written.
    """
    try:
        names = [general_name(host) for host in dict.fromkeys([*hosts, *ALWAYS])]
    except ValueError as error:
        raise ValueError(f"--host {error}") from None
    _within("--clients", clients, 0, MAX_CLIENTS)
    _within("--days", days, 1, MAX_DAYS)
    files = Certificates(folder)
    lacking, there = sorted((files.ca, files.ca_key), key=Path.is_file)
    if there.is_file() and not lacking.is_file():
        raise ValueError(f"{there} is there without {lacking}: bring it or name another folder")
    files.clients.mkdir(parents=True, exist_ok=True)
    files.clients.chmod(0o755)
    if not files.ca.is_file():
        # key_cert_sign and crl_sign: its key signs certificates and lists of them, and nothing else
        uses = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        rights = [x509.BasicConstraints(ca=True, path_length=0), uses]
        valid = timedelta(days=max(days, AUTHORITY_DAYS))
        _issue((files.ca_key, files.ca), "fedmosaic authority", valid, rights, [])
    _server(files, names if hosts else _former(files) or names, days)
    for k in range(clients):
        if not files.key(k).is_file():
            files.public(k).unlink(missing_ok=True)
            _write((files.key(k), _new_key(serialization.PrivateFormat.OpenSSH)[1], SECRET))
    for path in files.clients.glob("[0-9]*.key"):
        if not path.with_suffix(".pub").is_file():
            public = ssh_key(path, "; delete it to have a new one made").public_key()
            line = public.public_bytes(Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            _write((path.with_suffix(".pub"), line + f" client-{path.stem}\n".encode(), PUBLIC))
    return files


def _new_key(form: serialization.PrivateFormat) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """A new key on a NIST curve, as Flower demands of clients; and what its file holds."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key, key.private_bytes(Encoding.PEM, form, serialization.NoEncryption())


def _server(files: Certificates, names: Sequence[x509.GeneralName], days: int) -> None:
    authority = read_certificate(files.ca)
    signer = pem_key(files.ca_key)
    if signer.public_key() != authority.public_key():
        raise ValueError(f"{files.ca_key} is not the key of {files.ca}")
    left = authority.not_valid_after_utc - datetime.now(UTC)
    if left <= timedelta(0):
        raise ValueError(
            f"{files.ca} expired on {authority.not_valid_after_utc:%Y-%m-%d}: make a new authority "
            "in another folder, and give its ca.crt to all clients"
        )
    valid, issuer = min(timedelta(days=days), left), (authority.subject, signer)
    end = [x509.BasicConstraints(ca=False, path_length=None)]
    tls = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    at = x509.SubjectAlternativeName(names)
    _issue((files.server_key, files.server), "fedmosaic server", valid, end, [at, tls], issuer)
    use = x509.ExtendedKeyUsage([USE])
    _issue((files.app_key, files.app), SERVER_APP, valid, end, [use], issuer)


def _issue(
    places: tuple[Path, Path],
    name: str,
    valid: timedelta,
    critical: Sequence[x509.ExtensionType],
    others: Sequence[x509.ExtensionType],
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
) -> None:
    """Write a new key and its certificate to ``places``; without an ``issuer`` it is its own."""
    key, private = _new_key(serialization.PrivateFormat.PKCS8)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
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
    certificate = builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)
    _write((places[0], private, SECRET), (places[1], certificate, PUBLIC))


def read_public_key(path: Path) -> bytes:
    """An OpenSSH public key file as the Control API takes it: PEM.

    Raises ``ValueError``: the file cannot be read, or is no public key on a NIST curve.
    """
    key = ssh_public_key(path)
    return key.public_bytes(Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _former(files: Certificates) -> list[x509.GeneralName]:
    """The names in the server's certificate; none, if there is none that can be read."""
    try:
        certificate = read_certificate(files.server)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return list(found.value)


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
    try:
        for new, (_, content, mode) in zip(ready, files, strict=True):
            write_atomically(new, content, private=True)
            new.chmod(mode)
        for new, (path, _, _) in zip(ready, files, strict=True):
            os.replace(new, path)
    finally:
        for new in ready:
            new.unlink(missing_ok=True)


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{what} {value} is not allowed; it should be {low} to {high}")
