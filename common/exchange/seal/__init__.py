"""End-to-end encryption and authentication of payloads between the ServerApp and the clients.

``files.py`` reads keys and certificates. ``body.py`` encrypts the content of a message.
``session.py`` derives keys and binds every message to its place in the exchange. All primitives are
from the ``cryptography`` package: ECDSA with P-384 and SHA-384, X25519, HKDF-SHA256, AES-256-GCM.
"""
