"""Keys, certificates and the list of revoked keys in local files."""

import base64
import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.files import read_text

SERVER_APP = "fedmosaic serverapp"
"""Common name in the ServerApp's certificate; TLS certificates have another name and use."""
USE = ExtendedKeyUsageOID.CLIENT_AUTH
"""Only use of the ServerApp's certificate; TLS certificates are for SERVER_AUTH."""
REVOKED = "revoked"
"""Name of the list of revoked keys, in the folder of the clients' public keys."""
EXPIRES_SOON = timedelta(days=30)  #: time before the end of a certificate in which it is announced
FINGERPRINT = re.compile("SHA256:[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]")  #: 256 bits in base64


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in ``path``.

    Raises ``ValueError`` if the content is no certificate, ``OSError`` if the file is unreadable.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path} cannot be read: it holds no certificate") from None


def ssh_key(path: Path, remedy: str = "") -> ec.EllipticCurvePrivateKey:
    """Return a client's private key; raise ``ValueError``, with the remedy, for another file."""
    return private_key(path, serialization.load_ssh_private_key, "OpenSSH key", remedy)


def pem_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a certificate; raise ``ValueError`` for another file."""
    return private_key(path, serialization.load_pem_private_key, "key")


def private_key(
    path: Path, load: Callable[[bytes, None], object], kind: str, remedy: str = ""
) -> ec.EllipticCurvePrivateKey:
    """Return the key that ``load`` reads; raise ``ValueError`` for no key on a NIST curve."""
    try:
        key = load(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(
            f"{path} cannot be read: it holds no {kind} without a password{remedy}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no elliptic-curve key{remedy}")
    return key


def ssh_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return a client's public key; raise ``ValueError`` for another file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return _public_key(data, str(path), "it should be a K.pub of fedmosaic keygen or certs")


def read_roster(path: Path) -> dict[int, ec.EllipticCurvePublicKey]:
    """Return the clients' registered keys by client, from a file with the lines of all ``K.pub``.

    Raises ``ValueError``, one line, if the file cannot be read or has another line.
    """
    keys: dict[int, ec.EllipticCurvePublicKey] = {}
    remedy = "it should be roster.pub of fedmosaic certs"
    try:
        lines = read_text(path).splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        named = re.search(r" client-(0|[1-9][0-9]{0,6})$", line)
        if named is None or int(named[1]) in keys:
            raise ValueError(f"{path}, line {number} names no client, or one twice; {remedy}")
        keys[int(named[1])] = _public_key(line.encode(), f"{path}, line {number}", remedy)
    return keys


def _public_key(data: bytes, what: str, remedy: str) -> ec.EllipticCurvePublicKey:
    """Return the key of an OpenSSH public key line; raise ``ValueError`` for another content."""
    try:
        key = serialization.load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{what} is no OpenSSH public key; {remedy}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{what} is no key on a NIST curve; {remedy}")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the SHA-256 fingerprint of a public key, as ``ssh-keygen -l`` prints it."""
    form = serialization.PublicFormat.OpenSSH
    line = key.public_bytes(serialization.Encoding.OpenSSH, form)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def read_revoked(path: Path) -> frozenset[str]:
    """Return the fingerprints in a list of revoked keys; empty if there is no such file.

    Each line is a fingerprint or an OpenSSH public key. Text after ``#`` is a comment. Raises
    ``ValueError``, one line, if the list cannot be read or has another line, because a list that is
    read in part would revoke too little.
    """
    try:
        lines = read_text(path).splitlines()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return frozenset()
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    revoked = set[str]()
    for number, line in enumerate(lines, 1):
        if entry := line.partition("#")[0].strip():
            remedy = "a line should be SHA256:… (ssh-keygen -lf K.pub), a public key or a # comment"
            if not FINGERPRINT.fullmatch(entry):
                key = _public_key(entry.encode(), f"{path}, line {number}: {entry[:60]!r}", remedy)
                entry = fingerprint(key)
            revoked.add(entry)
    return frozenset(revoked)


def expiry_warnings(certificates: Iterable[Path]) -> list[str]:
    """Return a line for each certificate that has expired or expires within ``EXPIRES_SOON``.

    A line names the file, the date and the command that renews it. Files that are missing or are
    not certificates are left out: each program reports those that it needs itself.
    """
    lines: list[str] = []
    for path in certificates:
        with contextlib.suppress(OSError, ValueError):
            certificate = read_certificate(path)
            until = certificate.not_valid_after_utc
            left = until - datetime.now(UTC)
            if left > EXPIRES_SOON:
                continue
            state = f"expires on {until:%Y-%m-%d}, in {left.days} days"
            if left <= timedelta(0):
                state = f"expired on {until:%Y-%m-%d}"
            folder = path.parent if path.with_name("ca.key").exists() else "FOLDER (with ca.key)"
            remedy = f"renew it with: fedmosaic certs {folder}, and restart the server"
            if certificate.issuer == certificate.subject:
                remedy = (
                    "make a new authority with: fedmosaic certs NEW_FOLDER --host …, and copy its "
                    "ca.crt to all clients"
                )
            lines.append(f"{path} {state}; {remedy}")
    return lines


def server_app_key(der: bytes, authority: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Return the public key in a ServerApp's certificate that ``authority`` signed.

    Raises ``ValueError`` for another signature or another use, and if a certificate has expired.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(authority)
        extension = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        uses = list(extension.value)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        raise ValueError("its certificate is not one of this node's authority") from None
    names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    key, now = certificate.public_key(), datetime.now(UTC)
    if names != [SERVER_APP] or uses != [USE] or not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("its certificate is not a ServerApp's")
    for checked in (certificate, authority):
        if not checked.not_valid_before_utc <= now <= checked.not_valid_after_utc:
            until = f"{checked.not_valid_after_utc:%Y-%m-%d}"
            raise ValueError(f"a certificate has expired or is not valid yet (until {until})")
    return key
