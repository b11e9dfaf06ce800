"""Payloads that are authentic and secret between the ServerApp and the clients, whoever relays.

``files.py`` reads keys and certificates, ``body.py`` encrypts what a message holds, ``session.py``
agrees on keys and binds every message to its place in the exchange. Everything cryptographic is
the ``cryptography`` package's: ECDSA with P-384 and SHA-384, X25519, HKDF-SHA256, AES-256-GCM.
"""
