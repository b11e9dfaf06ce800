"""Keys and certificates in local files."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER_APP = "fedmosaic serverapp"
"""The common name in the ServerApp's certificate. That of TLS has another one, and another use."""
USE = ExtendedKeyUsageOID.CLIENT_AUTH
"""The ServerApp's certificate is for this and nothing else; that of TLS is for SERVER_AUTH."""


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
    return private_key(path, serialization.load_ssh_private_key, "OpenSSH key", remedy)


def pem_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key of a certificate; raises ``ValueError`` for a file that is none."""
    return private_key(path, serialization.load_pem_private_key, "key")


def private_key(
    path: Path, load: Callable[[bytes, None], object], kind: str, remedy: str = ""
) -> ec.EllipticCurvePrivateKey:
    """What ``load`` reads from ``path``; raises ``ValueError`` for no key on a NIST curve."""
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
    """A client's public key; raises ``ValueError`` for a file that is none."""
    ours = "it should be a K.pub of fedmosaic certs"
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is no OpenSSH public key; {ours}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} is no key on a NIST curve; {ours}")
    return key


def server_app_key(der: bytes, authority: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The public key in a ServerApp's certificate, which ``authority`` signed.

    Raises ``ValueError``: it did not, the certificate is for something else, or one has expired.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(authority)
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        uses = list(found.value)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        raise ValueError("its certificate is not one of this node's authority") from None
    names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    key, now = certificate.public_key(), datetime.now(UTC)
    if names != [SERVER_APP] or uses != [USE] or not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("its certificate is not a ServerApp's")
    for what in (certificate, authority):
        if not what.not_valid_before_utc <= now <= what.not_valid_after_utc:
            until = f"{what.not_valid_after_utc:%Y-%m-%d}"
            raise ValueError(f"a certificate has expired or is not valid yet (until {until})")
    return key
