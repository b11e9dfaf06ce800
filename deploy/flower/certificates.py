"""Certificates and keys of a federation: authority, SuperLink, ServerApp, and one key per client.

The ServerApp has its own certificate and seals its messages to the clients with it. The SuperLink,
where TLS ends, does not need the key of this certificate. ``ca.key`` signs new certificates of the
server and can stay on the machine that created it. A client's machine needs only ``ca.crt`` and its
own ``clients/K.key``, which it can make itself (``make_key``). Then only ``K.pub`` leaves it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import final

import filelock
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.exchange.seal.files import (
    REVOKED,
    SERVER_APP,
    USE,
    fingerprint,
    pem_key,
    read_certificate,
    read_revoked,
    ssh_key,
    ssh_public_key,
)
from common.files import read_text, write_atomically

HOST_PORT = "HOST:PORT, such as fed.example.org:9092 or [::1]:9092, with a port of 1 to 65535"
_PORT = re.compile("[0-9]{1,5}")
ALWAYS = ("localhost", "127.0.0.1")  #: names that the server's own programs use
SECRET, PUBLIC = 0o600, 0o644
CURVE = ec.SECP384R1()  #: of all keys; Flower requires a NIST curve
AUTHORITY_DAYS = 3650  #: long, because a new authority requires a new ca.crt at every client
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@final
class Certificates:
    """Paths of the certificates and keys in ``folder``; the files may be missing.

    ``keys``: folder of the clients' keys, ``folder/clients`` by default; ``authority``: file of the
    authority's certificate, ``folder/ca.crt`` by default.
    """

    def __init__(
        self, folder: Path, keys: Path | None = None, authority: Path | None = None
    ) -> None:
        self.folder = folder
        self.ca = authority or folder / "ca.crt"  #: public; the server and every client have it
        self.server, self.server_key = folder / "server.crt", folder / "server.key"
        self.app, self.app_key = folder / "serverapp.crt", folder / "serverapp.key"
        self.ca_key = folder / "ca.key"
        self.clients = keys or folder / "clients"  #: has ``K.key`` and ``K.pub``
        self.revoked = self.clients / REVOKED  #: list of revoked public keys
        #: public keys of all clients, public; clients check each other with it under [secure]
        self.roster = self.ca.with_name("roster.pub")

    def key(self, k: int) -> Path:
        """Return the path of client k's private key."""
        return self.clients / f"{k}.key"

    def public(self, k: int) -> Path:
        """Return the path of client k's public key, which the SuperLink registers."""
        return self.clients / f"{k}.pub"


def make(
    folder: Path,
    hosts: Sequence[str],
    clients: int,
    days: int = 365,
    public: Mapping[int, Path] | None = None,
    replace: bool = False,
) -> Certificates:
    """Create the missing files in ``folder``; a missing public key comes from the private key.

    Every call replaces the certificates of the server and the ServerApp. The same authority signs
    them, so clients need no new file when a certificate expires or the server moves.

    ``hosts``: names and addresses of the server, in addition to ``ALWAYS``; if empty, those in the
    existing certificate; ``clients``: number of clients that need a key pair, unless their public
    key exists; ``days``: validity of the server's certificates, limited by that of the authority. A
    new authority is valid for ``AUTHORITY_DAYS``, or for ``days`` if that is longer. ``public``:
    files with public keys that clients made themselves, by client; ``replace``: allow them to
    replace other public keys.

    Raises ``ValueError`` for a wrong argument, a damaged file or an expired authority, and
    ``OSError`` if the folder cannot be written.
    """
    try:
        names = [general_name(host) for host in dict.fromkeys([*hosts, *ALWAYS])]
    except ValueError as error:
        raise ValueError(f"--host {error}") from None
    files = Certificates(folder)
    keys = _accepted(files, public or {}, replace)
    missing, present = sorted((files.ca, files.ca_key), key=Path.is_file)
    if present.is_file() and not missing.is_file():
        raise ValueError(f"{present} exists without {missing}: copy it or name another folder")
    files.clients.mkdir(parents=True, exist_ok=True)
    files.clients.chmod(0o755)
    if not files.ca.is_file():
        # key_cert_sign and crl_sign: the key signs only certificates and revocation lists
        uses = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        rights = [x509.BasicConstraints(ca=True, path_length=0), uses]
        valid = timedelta(days=max(days, AUTHORITY_DAYS))
        _issue((files.ca_key, files.ca), "fedmosaic authority", valid, rights, [])
    _server(files, names if hosts else _former(files) or names, days)
    for k, key in keys.items():
        _write((files.public(k), _public_line(key, str(k)), PUBLIC))
    for k in range(clients):
        if not files.key(k).is_file() and not files.public(k).is_file():
            _write((files.key(k), _new_key(serialization.PrivateFormat.OpenSSH)[1], SECRET))
    for path in files.clients.glob("[0-9]*.key"):
        if not path.with_suffix(".pub").is_file():
            own = ssh_key(path, "; delete it to have a new one made").public_key()
            _write((path.with_suffix(".pub"), _public_line(own, path.stem), PUBLIC))
    if roster := _roster(files):
        _write((files.roster, roster, PUBLIC))
    return files


def _roster(files: Certificates) -> bytes:
    """Return the lines of all public keys that are not revoked, in order of the clients."""
    revoked = read_revoked(files.revoked)
    paths = [path for path in files.clients.glob("*.pub") if path.stem.isdigit()]
    keys = {int(path.stem): ssh_public_key(path) for path in paths}
    valid = {k: key for k, key in sorted(keys.items()) if fingerprint(key) not in revoked}
    return b"".join(_public_line(key, str(k)) for k, key in valid.items())


def make_key(folder: Path, k: int) -> tuple[Certificates, str]:
    """Write a new key pair of client k to ``folder``; return the paths and the fingerprint.

    Raises ``ValueError`` for a wrong number and for a file that exists already, and ``OSError`` if
    the folder cannot be written.
    """
    files = Certificates(folder, folder)
    for path in (files.key(k), files.public(k)):
        if os.path.lexists(path):
            raise ValueError(f"{path} exists already: move it away or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    key, private = _new_key(serialization.PrivateFormat.OpenSSH)
    line = _public_line(key.public_key(), str(k))
    _write((files.key(k), private, SECRET), (files.public(k), line, PUBLIC))
    return files, fingerprint(key.public_key())


def revoke(revoked: Path, keys: Sequence[Path]) -> int:
    """Add public keys to the list of revoked keys; return how many were not in it yet.

    Raises ``ValueError`` if the list or a key cannot be read or the list's folder is missing, and
    ``OSError`` if the list cannot be written.
    """
    if not revoked.parent.is_dir():
        raise ValueError(f"{revoked} cannot be written: {revoked.parent} is not a folder")
    with filelock.FileLock(revoked.with_name(f".{revoked.name}.lock")):
        before = read_revoked(revoked)
        found = {fingerprint(ssh_public_key(path)): path for path in keys}
        new = [f"{key}  # {path.name}\n" for key, path in found.items() if key not in before]
        if new:
            exists = revoked.exists()
            text = read_text(revoked) if exists else "# Keys that no ServerApp accepts.\n"
            text += "" if text.endswith("\n") else "\n"
            _write((revoked, (text + "".join(new)).encode(), PUBLIC))
    return len(new)


def _accepted(
    files: Certificates, public: Mapping[int, Path], replace: bool
) -> dict[int, ec.EllipticCurvePublicKey]:
    """Return by client the public keys that clients made themselves.

    Raises ``ValueError`` for a private key, another curve, a revoked key, a key that does not match
    the client's private key in the folder or replaces a valid public key, and for two clients with
    one key.
    """
    revoked, keys = read_revoked(files.revoked), dict[int, ec.EllipticCurvePublicKey]()
    for k, path in public.items():
        key, target = _sent_key(path), files.public(k)
        if fingerprint(key) in revoked:
            raise ValueError(f"{path} is revoked, see {files.revoked}: make a new key")
        if files.key(k).is_file() and ssh_key(files.key(k)).public_key() != key:
            raise ValueError(f"{files.key(k)} does not belong to {path}: move it away first")
        if target.is_file() and not replace:
            old = ssh_public_key(target)
            if old != key and fingerprint(old) not in revoked:
                raise ValueError(
                    f"{target} is another key of client {k}: unregister it first, or pass --replace"
                )
        keys[k] = key
    others = (p for p in files.clients.glob("*.pub") if p.stem not in map(str, keys))
    owners = {fingerprint(ssh_public_key(path)): path.stem for path in others}
    for k, key in keys.items():
        if (owner := owners.setdefault(fingerprint(key), str(k))) != str(k):
            raise ValueError(f"{public[k]} is the key of client {owner} too: each needs its own")
    return keys


def _sent_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the public key that a client sent; raise ``ValueError`` for a file of another kind."""
    with contextlib.suppress(OSError):
        if b"PRIVATE KEY" in path.read_bytes():
            raise ValueError(
                f"{path} is a private key, which stays with the client: pass its public half, "
                f"{path.with_suffix('.pub').name}"
            )
    key = ssh_public_key(path)
    if key.curve.name != CURVE.name:
        raise ValueError(
            f"{path} is a key on {key.curve.name}; it should be on {CURVE.name}, as fedmosaic "
            "keygen makes"
        )
    return key


def _public_line(key: ec.EllipticCurvePublicKey, k: str) -> bytes:
    """Return the content of ``K.pub``."""
    line = key.public_bytes(Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line + f" client-{k}\n".encode()


def _new_key(form: serialization.PrivateFormat) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """Return a new key on a NIST curve, which Flower requires, and the content of its file."""
    key = ec.generate_private_key(CURVE)
    return key, key.private_bytes(Encoding.PEM, form, serialization.NoEncryption())


def _server(files: Certificates, names: Sequence[x509.GeneralName], days: int) -> None:
    """Write new certificates of the SuperLink and the ServerApp, signed by the authority."""
    authority = read_certificate(files.ca)
    signer = pem_key(files.ca_key)
    if signer.public_key() != authority.public_key():
        raise ValueError(f"{files.ca_key} is not the key of {files.ca}")
    left = authority.not_valid_after_utc - datetime.now(UTC)
    if left <= timedelta(0):
        raise ValueError(
            f"{files.ca} expired on {authority.not_valid_after_utc:%Y-%m-%d}: make a new authority "
            "in another folder and copy its ca.crt to all clients"
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
    """Write a new key and its certificate to ``places``; self-signed without an ``issuer``."""
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
    """Return the key of an OpenSSH public key file as PEM, the format of the Control API.

    Raises ``ValueError`` if the file cannot be read or is not a public key on a NIST curve.
    """
    key = ssh_public_key(path)
    return key.public_bytes(Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _former(files: Certificates) -> list[x509.GeneralName]:
    """Return the names in the server's certificate; empty if it is missing or unreadable."""
    try:
        certificate = read_certificate(files.server)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return list(names.value)


@final
@dataclass(frozen=True)
class Connection:
    """Address ``HOST:PORT`` of a SuperLink, and its authority's certificate; None without TLS."""

    address: str
    ca: Path | None

    @classmethod
    def of(cls, superlink: str, ca: Path | None, *, insecure: bool) -> Connection:
        """Return the connection that the options ``--superlink``, ``--ca``, ``--insecure`` name.

        Raises ``ValueError`` for no address, no certificate, or not exactly one of the last two.
        """
        place = address(superlink)
        if (ca is None) == (not insecure):
            raise ValueError("pass either --ca FILE (TLS) or --insecure (no TLS)")
        if ca is None:
            return cls(place, None)
        path = ca.expanduser().resolve()
        try:
            read_certificate(path)
        except (ValueError, OSError) as error:
            why = getattr(error, "strerror", "") or "it is not a certificate"
            raise ValueError(f"--ca {ca}: {why}; it should be ca.crt of fedmosaic certs") from None
        return cls(place, path)

    @property
    def options(self) -> list[str]:
        """The options of a command that uses this connection."""
        tls = ["--insecure"] if self.ca is None else ["--ca", str(self.ca)]
        return ["--superlink", self.address, *tls]


def address(text: str, option: str = "--superlink") -> str:
    """Return ``text`` if it is ``host:port``, with an IPv6 address in brackets.

    Raises ``ValueError`` otherwise.
    """
    host, _, port = text.rpartition(":")
    if not _is_host(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValueError(f"{option} {text!r} is not allowed; it should be {HOST_PORT}")
    return text


def _is_host(text: str) -> bool:
    bracketed = text.startswith("[") and text.endswith("]")
    try:
        name = general_name(text[1:-1] if bracketed else text)
    except ValueError:
        return False
    return bracketed == isinstance(name.value, ipaddress.IPv6Address)


def general_name(host: str) -> x509.DNSName | x509.IPAddress:
    """Return a host name or an address in the form that certificates contain.

    Raises ``ValueError`` if it is neither, or an address with a scope. The message begins with
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
        raise ValueError(f"{host!r} is not a valid address")
    return x509.DNSName(host)


def _write(*files: tuple[Path, bytes, int]) -> None:
    """Write several files, given as path, content and mode.

    If writing fails, for example on a full disk, all files stay unchanged. A secret is never
    readable by other users, not even briefly.
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
