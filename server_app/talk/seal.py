"""The ServerApp's key, and the clients' registered ones."""

from pathlib import Path
from typing import final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from common.seal import files

TRUST = "FEDMOSAIC_TRUST"
"""The variable of the ServerApp's environment that names the folder of its key."""


@final
class Trust:
    """The files in ``folder``: ``serverapp.key``, ``serverapp.crt`` and ``clients/K.pub``.

    Raises ``ValueError``, one line, for one that is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._clients = folder / "clients"
        try:
            self.key = files.pem_key(folder / "serverapp.key")
            certificate = files.read_certificate(folder / "serverapp.crt")
        except OSError as error:
            reason = f"{error.filename} cannot be read: {error.strerror}"
            raise ValueError(f"{TRUST} = {folder}: {reason} (see fedmosaic certs)") from None
        if certificate.public_key() != self.key.public_key():
            raise ValueError(f"{TRUST} = {folder}: serverapp.key is not that of serverapp.crt")
        self.certificate = certificate.public_bytes(Encoding.DER)

    def client(self, k: int) -> ec.EllipticCurvePublicKey:
        """Client k's registered key."""
        return files.ssh_public_key(self._clients / f"{k}.pub")
