"""Keys and certificates in local files."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER_APP = "fedmosaic serverapp"
"""Common name in the ServerApp's certificate; TLS certificates have another name and use."""
USE = ExtendedKeyUsageOID.CLIENT_AUTH
"""Only use of the ServerApp's certificate; TLS certificates are for SERVER_AUTH."""


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
    remedy = "it should be a K.pub of fedmosaic certs"
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is no OpenSSH public key; {remedy}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} is no key on a NIST curve; {remedy}")
    return key


def fingerprint(key: PublicKeyTypes) -> str:
    """Return the SHA-256 of a public key (SubjectPublicKeyInfo, DER), 64 hex digits."""
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


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
